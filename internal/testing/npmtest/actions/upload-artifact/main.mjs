import fs from 'node:fs'
import path from 'node:path'
import { input, load, main, output } from './lib.mjs'

// common returns the directory that all paths are in.
function common(paths) {
  let parts = paths[0].split(path.sep)
  for (const other of paths.slice(1)) {
    const others = other.split(path.sep)
    const differs = parts.findIndex((part, i) => part !== others[i])
    if (differs >= 0) parts = parts.slice(0, differs)
  }
  return parts.join(path.sep) || path.sep
}

main(async () => {
  const { create } = await load('@actions/glob', 'glob')
  const { DefaultArtifactClient } = await load('artifact-6', 'artifact')
  const globber = await create(input('path'))
  const files = (await globber.glob()).filter(f => fs.statSync(f).isFile())
  const name = input('name')
  if (files.length === 0) {
    const says = 'No files were found: ' + input('path')
    if (input('if-no-files-found') === 'error') throw new Error(says)
    if (input('if-no-files-found') === 'warn') console.log('::warning::' + says)
    return
  }
  let root = common(globber.getSearchPaths())
  if (fs.statSync(root).isFile()) root = path.dirname(root)
  const client = new DefaultArtifactClient()
  if (input('overwrite') === 'true') await client.deleteArtifact(name).catch(() => {}) // it need not be there
  const made = await client.uploadArtifact(name, files, root, {
    retentionDays: Number(input('retention-days')) || undefined, compressionLevel: Number(input('compression-level')),
  })
  const { GITHUB_SERVER_URL, GITHUB_REPOSITORY, GITHUB_RUN_ID } = process.env
  output('artifact-id', made.id)
  output('artifact-digest', made.digest)
  output('artifact-url', `${GITHUB_SERVER_URL}/${GITHUB_REPOSITORY}/actions/runs/${GITHUB_RUN_ID}/artifacts/${made.id}`)
})
