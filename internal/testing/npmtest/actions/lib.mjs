// For the stand-ins of public actions: inputs, outputs and npm's packages, whose directory is in packages.txt.
import fs from 'node:fs'
import path from 'node:path'

const packages = fs.readFileSync(new URL('packages.txt', import.meta.url), 'utf8')
export const load = (name, file) => import(path.join(packages, 'node_modules', name, 'lib', file + '.js'))
export const input = name => (process.env['INPUT_' + name.toUpperCase()] ?? '').trim()
export const lines = name => input(name).split('\n').map(l => l.trim()).filter(l => l)
const append = (file, name, value) => fs.appendFileSync(process.env[file], `${name}=${value}\n`)
export const output = (name, value) => append('GITHUB_OUTPUT', name, value)
export const state = (name, value) => append('GITHUB_STATE', name, value)
export async function main(does) {
  try {
    await does()
  } catch (err) {
    console.log('::error::' + err.message)
    process.exit(1)
  }
  process.exit(0)
}
