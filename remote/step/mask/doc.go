// Package mask keeps secrets out of the output, the messages and the traces of a job.
//
// A [Set] has the secrets, each in its likely forms: unchanged, line by line, in base64 at any position, URL-encoded,
// as a string of JSON, and as shells, Python, Ruby and XML quote it. All other types ask it whether a text contains a
// secret. A [Writer] replaces secrets in a stream by [Replacement], also across the borders of writes. It replaces
// overlapping secrets together, so that no byte of them is left. It holds back a text that may be the beginning of a
// secret until a second passes without more. A [Redactor] replaces the texts and values of a trace that contain secrets
// by HMACs ([Text], [Value]). The job's owner keeps the Set. A stream ends with the Writer's Close.
//
// A secret that was changed in another way (reversed, split, compressed) is not found.
//
// The search time depends only on the length of the text, not on the number of secrets (A. Aho, M. Corasick: Efficient
// String Matching, 1975). A filter in front of it skips most of a text at a few instructions a byte.
package mask
