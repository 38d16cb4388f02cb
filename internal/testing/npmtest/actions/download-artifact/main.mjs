import path from 'node:path'
import { input, load, main, output } from './lib.mjs'

main(async () => {
  const { DefaultArtifactClient } = await load('artifact-6', 'artifact')
  const client = new DefaultArtifactClient()
  const to = path.resolve(input('path') || process.env.GITHUB_WORKSPACE)
  let found
  if (input('name')) {
    found = [(await client.getArtifact(input('name'))).artifact]
  } else {
    const ids = input('artifact-ids').split(',').filter(id => id.trim()).map(Number)
    const pattern = new RegExp('^' + (input('pattern') || '*').split('*').map(s => s.replace(/\W/g, '\\$&')).join('.*') + '$')
    found = (await client.listArtifacts({ latest: true })).artifacts
      .filter(a => ids.length ? ids.includes(a.id) : pattern.test(a.name))
    if (ids.length && !found.length) throw new Error('No artifact has one of the IDs ' + ids)
  }
  const together = input('merge-multiple') === 'true' || found.length === 1
  for (const { id, name, digest } of found) {
    const got = await client.downloadArtifact(id, { path: together ? to : path.join(to, name), expectedHash: digest })
    if (got.digestMismatch) throw new Error('Another digest: ' + name)
  }
  output('download-path', to)
})
