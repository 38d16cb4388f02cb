// Package page is the status page of a manager: its VMs, queue and builds, for browsers.
//
// [Serve] answers on a listener until the returned server is closed. Pages are plain HTML that the server renders. A
// few lines of script replace a part of them when it changes, by server-sent events. Each page has a twin in JSON: its
// path with .json, or the header Accept. The page uses the manager's service alone, as any client does.
//
// Without a token a page is for this machine and read-only. With one, browsers log in, and may drain VMs and cancel
// builds.
package page
