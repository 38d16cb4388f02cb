import { input, lines, load, main, output, state } from '../lib.mjs'

main(async () => {
  const cache = await load('cache-6', 'cache')
  const key = input('key')
  output('cache-primary-key', key)
  const options = { lookupOnly: input('lookup-only') === 'true' }
  const found = await cache.restoreCache(lines('path'), key, lines('restore-keys'), options)
  if (!found) {
    if (input('fail-on-cache-miss') === 'true') throw new Error('There is no cache ' + key)
    return
  }
  state('matched', found)
  output('cache-matched-key', found)
  output('cache-hit', found === key)
})
