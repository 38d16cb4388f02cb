#!/usr/bin/env bash
# @actions/cache 3.3.0, 4.1.0, 5.3.0 and 6.3.0, cache service v1: a piece of a cache has no length.
#
# Guess: each PATCH with a piece of a cache has a Content-Length, as the client knows the range that it sends in
# Content-Range, and as the uploads of @actions/artifact have one.
# Comes: Transfer-Encoding: chunked and no Content-Length. A server that asks for a length (411) gets no caches at all. The
# other requests, and the content of an upload of the cache service v2, have a length.
set -euo pipefail
for program in node npm; do command -v $program >/dev/null || { echo "skip: needs $program"; exit 77; }; done
[ "$(node -p 'process.versions.node.split(".")[0]')" -ge 20 ] || { echo "skip: needs node 20"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
versions='3.3.0 4.1.0 5.3.0 6.3.0'
set --
for v in $versions; do set -- "$@" "cache-${v%%.*}@npm:@actions/cache@$v"; done
npm install --silent --ignore-scripts --no-audit --no-fund "$@" >/dev/null
cat >server.mjs <<'JS'
import http from 'node:http'
import { spawn } from 'node:child_process'
const service = '/twirp/github.actions.results.api.v1.CacheService/'
const seen = []
const server = http.createServer((req, res) => {
  let bytes = 0
  req.on('data', piece => { bytes += piece.length })
  req.on('end', () => {
    const path = req.url.split('?')[0]
    if (req.method === 'PATCH' || req.method === 'PUT') {
      seen.push(req.method + (req.headers['content-length'] ? ' with a length' : ' ' + req.headers['transfer-encoding']))
    }
    const json = (status, body) => { res.writeHead(status, { 'content-type': 'application/json' }); res.end(JSON.stringify(body)) }
    if (path === service + 'CreateCacheEntry') {
      return json(200, { ok: true, signed_upload_url: `http://127.0.0.1:${server.address().port}/c/blob` })
    }
    if (path === service + 'FinalizeCacheEntryUpload') return json(200, { ok: true, entry_id: '1' })
    if (path.startsWith('/c/blob')) { res.writeHead(201); return res.end() }
    if (req.method === 'PATCH') { res.writeHead(204); return res.end() }
    json(201, { cacheId: 1 })
  })
})
server.listen(0, '127.0.0.1', async () => {
  const url = `http://127.0.0.1:${server.address().port}/`
  for (const major of ['3', '4', '5', '6']) {
    for (const host of ['https://git.example.com', 'https://github.com']) {
      seen.length = 0
      await new Promise(done => spawn('node', ['save.mjs', 'cache-' + major], {
        stdio: ['ignore', 'ignore', 'inherit'],
        env: {
          PATH: process.env.PATH, HOME: process.cwd(), RUNNER_TEMP: process.cwd(), GITHUB_WORKSPACE: process.cwd(),
          GITHUB_SERVER_URL: host, ACTIONS_CACHE_URL: url, ACTIONS_RESULTS_URL: url, ACTIONS_RUNTIME_TOKEN: 'x',
          ACTIONS_CACHE_SERVICE_V2: 'true'
        }
      }).on('exit', done))
      console.log(`${major}, ${host.slice(8)}: ${seen.join(', ')}`)
    }
  }
  server.close()
})
JS
cat >save.mjs <<'JS'
import fs from 'node:fs'
const cache = await import(process.argv[2])
fs.mkdirSync('tree', { recursive: true })
fs.writeFileSync('tree/file', 'content')
await cache.saveCache(['tree'], 'key')
JS
got=$(node server.mjs)
echo "$got"
want='3, git.example.com: PATCH chunked
3, github.com: PATCH chunked
4, git.example.com: PATCH chunked
4, github.com: PUT with a length
5, git.example.com: PATCH chunked
5, github.com: PUT with a length
6, git.example.com: PATCH chunked
6, github.com: PUT with a length'
[ "$got" = "$want" ] || { echo "expected:"; echo "$want"; exit 1; }
