package actionservices_test

import (
	"crypto/rand"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/actionservices"
	"github.com/stepmux/stepmux/internal/boundedhttp"
	"github.com/stepmux/stepmux/internal/testing/npmtest"
)

// serve starts services and returns them with their address.
func serve(t *testing.T, cfg actionservices.Config) (s *actionservices.Server, url string) {
	t.Helper()
	if cfg.Dir == "" {
		cfg.Dir = t.TempDir()
	}
	s = actionservices.New(cfg)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	server := boundedhttp.ServeFiles(listener, s, nil)
	t.Cleanup(func() {
		server.Close()
		s.Close()
	})
	return s, "http://" + listener.Addr().String()
}

// packages are the clients, by the names that the scripts use. With STEPMUX_ALL_CLIENTS, as of make prove
// WHAT=action-clients, they are all majors that have a public release.
var packages = func() map[string]string {
	some := maps.Clone(npmtest.Clients)
	if os.Getenv("STEPMUX_ALL_CLIENTS") != "" {
		maps.Copy(some, map[string]string{
			"artifact-4": "@actions/artifact@4.0.0", "artifact-5": "@actions/artifact@5.0.3",
			"cache-4": "@actions/cache@4.1.0", "cache-5": "@actions/cache@5.3.0",
		})
	}
	return some
}()

// packagesTemp is a directory for the packages, once they are installed. TestMain removes it.
var packagesTemp string

// install installs the packages, once, and returns their directory. An error says which part is missing.
var install = sync.OnceValues(func() (dir string, err error) {
	if packagesTemp, err = os.MkdirTemp("", "stepmux-npm-"); err != nil {
		return "", err
	}
	return npmtest.Install(packagesTemp, packages)
})

// node has the packages, and a directory for the files of a job.
type node struct{ packages, dir string }

func newNode(t *testing.T) node {
	t.Helper()
	dir, err := install()
	if err != nil {
		t.Skip(err)
	}
	return node{dir, t.TempDir()}
}

// run runs a program of JavaScript that uses a package, as an action of a job.
func (n node) run(t *testing.T, name, url, token, script string, env ...string) (output string, err error) {
	t.Helper()
	file := filepath.Join(n.packages, rand.Text()+".mjs")
	require.NoError(t, os.WriteFile(file, []byte(strings.ReplaceAll(script, "PACKAGE", name)), 0o600))
	cmd := exec.CommandContext(t.Context(), "node", file)
	cmd.Dir = n.dir
	cmd.Env = append([]string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + n.dir, "RUNNER_TEMP=" + t.TempDir(), "GITHUB_WORKSPACE=" + n.dir,
		"GITHUB_SERVER_URL=https://github.com", "GITHUB_RUN_ID=1", "GITHUB_REPOSITORY=o/r", "RUNNER_OS=Linux",
		"ACTIONS_RUNTIME_URL=" + url + "/", "ACTIONS_RESULTS_URL=" + url + "/", "ACTIONS_CACHE_URL=" + url + "/",
		"ACTIONS_RUNTIME_TOKEN=" + token, "ACTIONS_CACHE_SERVICE_V2=true",
	}, env...)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func TestEachMajorOfTheArtifactClient(t *testing.T) {
	for name := range packages {
		major, is := strings.CutPrefix(name, "artifact-")
		if !is {
			continue
		}
		script := current
		if major == "1" {
			script = old
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newNode(t)
			s, url := serve(t, actionservices.Config{})
			first, end := s.Begin(actionservices.Job{Run: "1", Name: "build"})
			out, err := c.run(t, name, url, first, script, "PHASE=up")
			require.NoError(t, err, out)
			require.Contains(t, out, "uploaded")
			end()
			second, end := s.Begin(actionservices.Job{Run: "1", Name: "test"})
			defer end()
			other, end := s.Begin(actionservices.Job{Run: "2", Name: "test"})
			defer end()
			out, err = c.run(t, name, url, second, script, "PHASE=down", "OTHER="+other, "ENDED="+first)
			require.NoError(t, err, out)
			require.Contains(t, out, "files are the same")
			refusals := strings.Split(out, "refused: ")[1:]
			if major == "1" {
				require.Len(t, refusals, 2, out)
			} else { // the client itself refuses a server that is not GitHub's
				require.Len(t, refusals, 3, out)
			}
			require.Regexp(t, "(?i)unauthorized|with 401", refusals[len(refusals)-1])
		})
	}
}

// files makes and compares a tree with an empty file, a name with a space, and 12 MB that do not compress.
const files = `
import fs from 'node:fs'
import path from 'node:path'
import crypto from 'node:crypto'
const names = ['a/empty', 'a/with space.txt', 'big.bin']
const key = crypto.createHash('sha256').update('seed').digest()
const big = crypto.createCipheriv('aes-256-ctr', key, Buffer.alloc(16)).update(Buffer.alloc(12 << 20))
const content = { 'a/empty': Buffer.alloc(0), 'a/with space.txt': Buffer.from('hello\n'), 'big.bin': big }
function make(dir) {
  for (const n of names) {
    fs.mkdirSync(path.dirname(path.join(dir, n)), { recursive: true })
    fs.writeFileSync(path.join(dir, n), content[n])
  }
  return names.map(n => path.join(dir, n))
}
function compare(dir) {
  for (const n of names) {
    if (!fs.readFileSync(path.join(dir, n)).equals(content[n])) throw new Error('another content: ' + n)
  }
  console.log('files are the same')
}
async function refused(token, what) {
  process.env.ACTIONS_RUNTIME_TOKEN = token
  try { await what() } catch (e) { return console.log('refused: ' + e.message) }
  throw new Error('not refused')
}
`

const current = files + `
import { DefaultArtifactClient } from 'PACKAGE'
const client = new DefaultArtifactClient()
if (process.env.PHASE === 'up') {
  const up = await client.uploadArtifact('the files', make('up'), path.resolve('up'))
  if (!up.id || up.size < (12 << 20)) throw new Error(JSON.stringify(up))
  let again = ''
  try { await client.uploadArtifact('the files', make('up'), path.resolve('up')) } catch (e) { again = e.message }
  if (!again.includes('already')) throw new Error('a name was used twice: ' + again)
  await client.uploadArtifact('other', make('up'), path.resolve('up'))
  await client.deleteArtifact('other')
  console.log('uploaded')
} else {
  const get = async () => {
    const list = await client.listArtifacts()
    if (list.artifacts.length !== 1) throw new Error('Unauthorized or missing: ' + JSON.stringify(list))
    const { artifact } = await client.getArtifact('the files')
    const to = { path: path.resolve('down'), expectedHash: artifact.digest }
    const down = await client.downloadArtifact(artifact.id, to)
    if (down.digestMismatch) throw new Error('another digest')
  }
  await get()
  compare('down')
  const host = process.env.GITHUB_SERVER_URL
  process.env.GITHUB_SERVER_URL = 'https://git.example.com'
  await refused(process.env.ACTIONS_RUNTIME_TOKEN, () => client.uploadArtifact('more', make('up'), path.resolve('up')))
  process.env.GITHUB_SERVER_URL = host
  await refused(process.env.OTHER, get)
  await refused(process.env.ENDED, get)
}
`

const old = files + `
import artifact from 'PACKAGE'
const client = artifact.create()
if (process.env.PHASE === 'up') {
  const up = await client.uploadArtifact('the files', make('up'), path.resolve('up'), { continueOnError: false })
  if (up.failedItems.length > 0) throw new Error(JSON.stringify(up))
  console.log('uploaded')
} else {
  const get = () => client.downloadArtifact('the files', 'down')
  compare((await get()).downloadPath)
  await refused(process.env.OTHER, get)
  await refused(process.env.ENDED, get)
}
`

func TestEachMajorOfTheCacheClient(t *testing.T) {
	for name := range packages {
		if !strings.HasPrefix(name, "cache-") {
			continue
		}
		for host, service := range map[string]string{"https://github.com": "v2", "https://git.example.com": "v1"} {
			t.Run(name+" "+service, func(t *testing.T) {
				t.Parallel()
				c := newNode(t)
				caches := filepath.Join(t.TempDir(), "caches")
				for _, phase := range []string{"save", "restore"} { // of two runs, with services of their own
					s, url := serve(t, actionservices.Config{Caches: caches})
					token, end := s.Begin(actionservices.Job{Run: "1", Name: "build", Scopes: []string{"refs/heads/main"}})
					defer end()
					out, err := c.run(t, name, url, token, cache, "PHASE="+phase, "GITHUB_SERVER_URL="+host)
					require.NoError(t, err, out)
					require.Contains(t, out, "done")
				}
			})
		}
	}
}

const cache = files + `
import * as cache from 'PACKAGE'
if (!cache.isFeatureAvailable()) throw new Error('no cache')
if (process.env.PHASE === 'save') {
  if (await cache.restoreCache(['tree'], 'key-1', ['key-'])) throw new Error('a cache is there')
  make('tree')
  const id = await cache.saveCache(['tree'], 'key-1')
  if (!(id > 0)) throw new Error('not saved: ' + id)
  if (await cache.saveCache(['tree'], 'key-1') > 0) throw new Error('saved twice')
} else {
  const hit = await cache.restoreCache(['tree'], 'key-2', ['key-'])
  if (hit !== 'key-1') throw new Error('found ' + hit)
  compare('tree')
}
console.log('done')
`
