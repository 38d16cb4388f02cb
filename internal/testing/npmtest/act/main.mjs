// Calls the services for artifacts and caches, as the lines of the input "do" say. With the input "packages", the real
// clients are in that directory.
import { execFileSync } from 'node:child_process'
import crypto from 'node:crypto'
import fs from 'node:fs'
import path from 'node:path'
import { setTimeout } from 'node:timers/promises'

const { INPUT_DO, INPUT_PACKAGES, ACTIONS_RUNTIME_TOKEN, ACTIONS_RESULTS_URL } = process.env
const headers = { authorization: 'Bearer ' + ACTIONS_RUNTIME_TOKEN, 'content-type': 'application/json' }

// As the clients do, it tries again when the connection ends, as with the manager.
async function fetchAgain(at, options, tries = 100) {
  try {
    return await fetch(at, options)
  } catch (err) {
    if (!err.cause || tries === 1) throw err
    await setTimeout(20)
    return fetchAgain(at, options, tries - 1)
  }
}
async function call(service, method, body) {
  const at = new URL('/twirp/github.actions.results.api.v1.' + service + '/' + method, ACTIONS_RESULTS_URL)
  return (await fetchAgain(at, { method: 'POST', headers, body: JSON.stringify(body) })).json()
}
async function put(url, text) {
  const answer = await fetchAgain(url, { method: 'PUT', body: text, headers: { 'x-ms-blob-type': 'BlockBlob' } })
  if (answer.status !== 201) throw new Error(await answer.text())
}
async function get(url) {
  const answer = await fetchAgain(url)
  return answer.status === 200 ? answer.text() : 'gone: ' + (await answer.json()).msg
}
const load = async name => import(path.join(INPUT_PACKAGES, 'node_modules', name, 'lib', name.split('-')[0] + '.js'))
let upload

// noise returns bytes that do not compress, the same ones for a key.
function noise(key, bytes) {
  const cipher = crypto.createCipheriv('aes-256-ctr', crypto.hash('sha256', key, 'buffer'), Buffer.alloc(16))
  return cipher.update(Buffer.alloc(Number(bytes)))
}

async function timed(name, call) {
  const begin = performance.now()
  await call()
  console.log('timed ' + name + ' ' + (performance.now() - begin) / 1000)
}

const verbs = {
  async keep(name, text) {
    await verbs.begin(name, text)
    await verbs.end(name, text)
  },
  async begin(name, text) {
    const made = await call('ArtifactService', 'CreateArtifact', { name, version: 4 })
    if (!made.ok) throw new Error(name + ': ' + made.msg)
    upload = made.signed_upload_url
    await put(upload, text)
    console.log('sent ' + name)
  },
  async flood(name, bytes) { // without a client that tries again
    const made = await call('ArtifactService', 'CreateArtifact', { name, version: 4 })
    await put(made.signed_upload_url, Buffer.alloc(Number(bytes))).catch(err => console.log(err.message))
  },
  async end(name, text) {
    const made = await call('ArtifactService', 'FinalizeArtifact', { name, size: String(text.length) })
    console.log(made.ok ? 'kept ' + name : name + ': ' + made.msg)
  },
  async get(name) {
    const found = await call('ArtifactService', 'GetSignedArtifactURL', { name })
    console.log(name + ' is ' + (found.signed_url ? await get(found.signed_url) : 'missing'))
  },
  async list() {
    const all = (await call('ArtifactService', 'ListArtifacts', {})).artifacts
    console.log('all: ' + all.map(a => a.name).sort().join(' '))
  },
  async save(key, text) {
    const made = await call('CacheService', 'CreateCacheEntry', { key, version: 'v' })
    if (!made.ok) return console.log('not saved: ' + made.msg)
    await put(made.signed_upload_url, text)
    const kept = await call('CacheService', 'FinalizeCacheEntryUpload', { key, version: 'v', size_bytes: String(text.length) })
    console.log(kept.ok ? 'saved ' + key : 'not saved: ' + kept.msg)
  },
  async restore(key, ...more) {
    const found = await call('CacheService', 'GetCacheEntryDownloadURL', { key, restore_keys: more, version: 'v' })
    console.log(key + (found.ok ? ' found ' + found.matched_key + ': ' + await get(found.signed_download_url) : ' found nothing'))
  },
  async write(file, text) { fs.writeFileSync(file, text) },
  async awaits(file) { while (!fs.existsSync(file)) await setTimeout(20) },
  async token(file) { fs.writeFileSync(file, ACTIONS_RESULTS_URL + '\n' + ACTIONS_RUNTIME_TOKEN) },
  async hold(n) { // connections that say nothing
    const at = new URL(ACTIONS_RESULTS_URL)
    const net = await import('node:net')
    for (let i = 0; i < n; i++) net.connect(at.port, at.hostname).on('error', () => {})
  },
  // With the real clients: files of so many bytes.
  async upload(name, bytes) {
    const { DefaultArtifactClient } = await load('artifact-6')
    fs.mkdirSync('up/d', { recursive: true })
    fs.writeFileSync('up/d/f', Buffer.alloc(Number(bytes), name + ' '))
    const made = await new DefaultArtifactClient().uploadArtifact(name, ['up/d/f'], 'up', { compressionLevel: 0 })
    console.log('uploaded ' + name + ' ' + (made.size > bytes))
  },
  async download(name, bytes) {
    const { DefaultArtifactClient } = await load('artifact-6')
    const client = new DefaultArtifactClient()
    const { artifact } = await client.getArtifact(name)
    await client.downloadArtifact(artifact.id, { path: 'down-' + name })
    const same = fs.readFileSync('down-' + name + '/d/f').equals(Buffer.alloc(Number(bytes), name + ' '))
    console.log('downloaded ' + name + ' ' + same)
  },
  async cache(key, bytes, client = 'cache-6') {
    const cache = await load(client)
    fs.mkdirSync('cached', { recursive: true })
    fs.writeFileSync('cached/f', noise(key, bytes))
    console.log('cached ' + (await cache.saveCache(['cached'], key) > 0))
    fs.rmSync('cached', { recursive: true })
  },
  async restoreCache(key, bytes, client = 'cache-6') {
    const found = await (await load(client)).restoreCache(['cached'], key)
    console.log('restored ' + found + ' ' + (found && fs.readFileSync('cached/f').equals(noise(key, bytes))))
  },
  // Prepares and measures the restore of a cache by npm's client, beside the command by which that unpacks it.
  async prepareCache(key, bytes, archive) {
    const mib = 1 << 20
    fs.mkdirSync('cached', { recursive: true })
    for (let i = 0; i * mib < bytes; i++) fs.writeFileSync('cached/' + i, noise(key + i, Math.min(mib, bytes - i * mib)))
    await (await load('cache-6')).saveCache(['cached'], key)
    execFileSync('tar', ['--posix', '-cf', archive, '-P', '--use-compress-program', 'zstdmt', 'cached'])
  },
  async timeCache(key, archive, first) {
    const cache = await load('cache-6')
    const ways = {
      restore: async () => { if (await cache.restoreCache(['cached'], key) !== key) throw new Error('no cache') },
      tar: async () => execFileSync('tar', ['-xf', archive, '-P', '--use-compress-program', 'unzstd']),
    }
    for (const way of first === 'tar' ? ['tar', 'restore'] : ['restore', 'tar']) {
      fs.rmSync('cached', { recursive: true, force: true })
      await timed(way, ways[way])
    }
  },
  // Measures transfers of a file: by npm's client (artifact), as plain HTTP requests such as its own (plain), or as a
  // copy on the disk (neither).
  async time(verb, file) {
    if (verb === 'artifact') {
      const { DefaultArtifactClient } = await load('artifact-6')
      const client = new DefaultArtifactClient()
      await timed('up', () => client.uploadArtifact('a', [file], path.dirname(file), { compressionLevel: 0 }))
      const { artifact } = await client.getArtifact('a')
      await timed('down', () => client.downloadArtifact(artifact.id, { path: 'down' }))
    } else if (verb === 'plain') {
      const size = fs.statSync(file).size
      const made = await call('ArtifactService', 'CreateArtifact', { name: 'p', version: 4 })
      const at = comp => made.signed_upload_url + '&comp=' + comp
      await timed('plain-up', async () => {
        const block = Buffer.alloc(8 << 20)
        const ids = Array.from({ length: Math.ceil(size / block.length) }, (_, i) => 'b' + i)
        const left = ids.entries()
        const send = async () => {
          for (const [i, id] of left) await put(at('block') + '&blockid=' + id, block.subarray(0, size - i * block.length))
        }
        await Promise.all(Array.from({ length: 5 }, send))
        await put(at('blocklist'), '<BlockList>' + ids.map(id => `<Latest>${id}</Latest>`).join('') + '</BlockList>')
        await call('ArtifactService', 'FinalizeArtifact', { name: 'p', size: String(size) })
      })
      const found = await call('ArtifactService', 'GetSignedArtifactURL', { name: 'p' })
      await timed('plain-down', async () => {
        const answer = await fetch(found.signed_url)
        let got = 0
        for await (const piece of answer.body) got += piece.length
        if (got !== size) throw new Error('got ' + got)
      })
      return
    } else {
      fs.mkdirSync('down', { recursive: true })
      await timed('copy', () => fs.promises.copyFile(file, 'down/' + path.basename(file)))
    }
    const same = fs.statSync('down/' + path.basename(file)).size === fs.statSync(file).size
    fs.rmSync('down', { recursive: true })
    if (!same) throw new Error('the file has another size')
  },
}
for (const line of INPUT_DO.split('\n').map(l => l.trim()).filter(l => l)) {
  const [verb, ...args] = line.split(' ')
  await verbs[verb](...args)
}
process.exit(0)
