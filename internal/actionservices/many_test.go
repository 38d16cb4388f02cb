package actionservices_test

import (
	"os"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/actionservices"
)

// The first protocol has a request for each file. 10,000 files take a minute: make prove WHAT=action-clients has them.
func TestManyFilesOfAnArtifact(t *testing.T) {
	for name, most := range map[string]int{"artifact-6": 2000, "artifact-1": 500} {
		if os.Getenv("STEPMUX_ALL_CLIENTS") != "" {
			most = 10_000
		}
		script := manyFiles + manyByArchive
		if name == "artifact-1" {
			script = manyFiles + manyOneByOne
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newNode(t)
			s, url := serve(t, actionservices.Config{})
			token, end := s.Begin(actionservices.Job{Run: "1", Name: "build"})
			defer end()
			out, err := c.run(t, name, url, token, script, "FILES="+strconv.Itoa(most))
			require.NoError(t, err, out[max(0, len(out)-4000):])
			require.Contains(t, out, strconv.Itoa(most)+" files are the same\n")
		})
	}
}

// manyFiles has functions for a tree of FILES small files in a hundred directories.
const manyFiles = `
import fs from 'node:fs'
import path from 'node:path'
const most = Number(process.env.FILES)
const name = i => 'd' + i % 100 + '/f' + i
const text = i => 'file ' + i + '\n'
function makeMany(dir) {
  const all = []
  for (let i = 0; i < most; i++) {
    const file = path.join(dir, name(i))
    if (i < 100) fs.mkdirSync(path.dirname(file), { recursive: true })
    fs.writeFileSync(file, text(i))
    all.push(file)
  }
  return all
}
function compareMany(dir) {
  const found = fs.readdirSync(dir, { recursive: true, withFileTypes: true }).filter(d => d.isFile()).length
  if (found !== most) throw new Error('there are ' + found + ' files')
  for (let i = 0; i < most; i++) {
    if (fs.readFileSync(path.join(dir, name(i)), 'utf8') !== text(i)) throw new Error('another content: ' + name(i))
  }
  console.log(most + ' files are the same')
}
`

const manyByArchive = `
import { DefaultArtifactClient } from 'PACKAGE'
const client = new DefaultArtifactClient()
await client.uploadArtifact('many', makeMany('up'), path.resolve('up'))
const { artifact } = await client.getArtifact('many')
await client.downloadArtifact(artifact.id, { path: path.resolve('down') })
compareMany('down')
`

const manyOneByOne = `
import artifact from 'PACKAGE'
const client = artifact.create()
const up = await client.uploadArtifact('many', makeMany('up'), path.resolve('up'), { continueOnError: false })
if (up.failedItems.length > 0) throw new Error(JSON.stringify(up))
compareMany((await client.downloadArtifact('many', 'down')).downloadPath)
`
