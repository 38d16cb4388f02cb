// Package actionservices has the services that actions of GitHub talk to: for artifacts, which the jobs of a run give
// each other, and for caches, which later runs find again. The clients are the npm packages @actions/artifact and
// @actions/cache, in all their major versions:
//
//   - the artifact service v4 (Twirp, github.actions.results.api.v1.ArtifactService), with uploads in the form of
//     Azure's block blobs;
//   - the artifact service before it (_apis/pipelines/workflows);
//   - the cache service v2 (Twirp, github.actions.results.api.v1.CacheService) and v1 (_apis/artifactcache).
//
// A Gitea server has artifacts of its own: [Door.PassOn] passes requests for it on.
//
// A [Server] is an [http.Handler]. Its owner listens where jobs reach it, registers each job by [Server.Begin], gives
// it the [Services] and closes the Server. A request needs the token of a job that has not ended. Everything in a
// request is untrusted.
package actionservices
