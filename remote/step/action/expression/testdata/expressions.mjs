// Evaluates the expressions of a file, a JSON text on each line, with @actions/expressions, and prints on each line the
// result as JSON: its text, or null for an error. The context c is in a file.
import fs from 'node:fs'
import path from 'node:path'
import { pathToFileURL } from 'node:url'

const [packages, context, expressions] = process.argv.slice(2)
const index = path.join(packages, 'node_modules/@actions/expressions/dist/index.js')
const { Evaluator, Lexer, Parser, data } = await import(pathToFileURL(index))
const c = JSON.parse(fs.readFileSync(context, 'utf8'), data.reviver)
for (const line of fs.readFileSync(expressions, 'utf8').trim().split('\n')) {
  let result = null
  try {
    const tree = new Parser(new Lexer(JSON.parse(line)).lex().tokens, ['c'], []).parse()
    const value = new Evaluator(tree, new data.Dictionary({ key: 'c', value: c })).evaluate()
    const isList = value.kind === data.Kind.Array || value.kind === data.Kind.Dictionary
    result = isList ? JSON.stringify(value, data.replacer, '  ') : value.coerceString()
  } catch {
    // an error, whose words are its own
  }
  console.log(JSON.stringify(result))
}
