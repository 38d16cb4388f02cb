// Package mask keeps secrets out of the output, the messages and the traces of a job.
//
// A [Set] holds the secrets, each in its likely forms: as it is, line by line, in base64 wherever it begins,
// URL-encoded, and as a string of JSON. It alone decides whether a text holds a secret. A [Writer] replaces secrets
// in a stream by [Replacement], however the stream is cut into writes. Overlapping secrets are replaced together, so
// that no byte of them is left. A text that may begin a secret is held back until a second passes without more. A
// [Redactor] replaces the texts and values of a trace that hold secrets by HMACs ([Text], [Value]). The job's owner
// keeps the Set; its streams end with the Writer's Close.
//
// A secret that was changed in another way (reversed, split, compressed) is not found.
//
// The search time depends on the length of the text only, not on the number of secrets (A. Aho, M. Corasick:
// Efficient String Matching, 1975). A filter before it passes over most of a text at a few instructions a byte.
package mask
