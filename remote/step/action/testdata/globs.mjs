// Prints the files that each pattern of a table selects, by @actions/glob as GitHub's runner calls it for hashFiles.
// Arguments: the folder with node_modules, a tree of files, and the table: lines of JSON, a list of a pattern and files.
import fs from 'node:fs'
import path from 'node:path'
import { createRequire } from 'node:module'

const [folder, tree, table] = process.argv.slice(2)
const { create } = createRequire(path.resolve(folder, 'x.js'))('@actions/glob')
process.chdir(tree)
process.stdout.write = () => true // the package prints debug messages
const rows = []
for (const line of fs.readFileSync(table, 'utf8').trim().split('\n')) {
    const [pattern] = JSON.parse(line)
    let files = []
    try {
        for await (const file of (await create(pattern, { followSymbolicLinks: false })).globGenerator()) {
            if (fs.statSync(file).isFile()) files.push(path.relative(tree, file))
        }
    } catch (err) {
        files = null
    }
    rows.push(JSON.stringify([pattern, files]))
}
fs.writeFileSync(table, rows.join('\n') + '\n')
