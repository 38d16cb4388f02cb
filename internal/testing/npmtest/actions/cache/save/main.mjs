import { input, lines, load, main } from '../lib.mjs'

main(async () => {
  const cache = await load('cache-6', 'cache')
  const key = input('key')
  if (process.env.STATE_matched !== key && await cache.saveCache(lines('path'), key) > 0) {
    console.log('Cache saved with key: ' + key)
  }
})
