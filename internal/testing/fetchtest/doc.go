// Package fetchtest serves steps to tests: git repositories ([Repository]) behind git's own http-backend ([ServeGit]),
// archives ([Zip]), and a registry of images ([ServeRegistry]). Only tests and the example of all step sources use it.
// The end of the test stops the servers.
package fetchtest
