// Package mask keeps secrets out of what a job writes.
//
// A [Set] holds the secrets, each in the forms it is likely to be printed in: as it is, line by line, in
// base64 wherever it begins, URL-encoded. A [Writer] replaces them in a stream by [Replacement], however
// the stream is cut into writes: it holds back what may be the beginning of a secret, and nothing else.
// Secrets that overlap are replaced together, so that no byte of any of them is left.
//
// What it cannot find is a secret that was changed in another way: reversed, split, compressed.
//
// All secrets are searched for at once, in time that depends on the length of the text only
// (A. Aho, M. Corasick: Efficient String Matching, 1975), with a filter before it that passes over most of
// a text at a few instructions a byte.
package mask
