package managed

import (
	"context"
	"fmt"
	"os"

	pb "github.com/stepmux/stepmux/instance/manager/managerv1"
	"github.com/stepmux/stepmux/internal/standalone/whole/carry"
)

// findCaches adds the caches of an attempt to the request for its build.
func (e executor) findCaches(ctx context.Context, a *carry.Attempt, to *pb.PipelineBuild) error {
	project := func(ctx context.Context) (*os.File, error) {
		return e.run.OpenArchive(ctx, a.Archives[0].Digest, a.Archives[0].Size)
	}
	kept, err := e.caches.Find(ctx, a, project, func(ctx context.Context, key string) (carry.Archive, error) {
		found, err := e.run.FindCache(ctx, key)
		return carry.Archive{Digest: found.GetDigest(), Size: found.GetSize()}, err
	})
	if err != nil {
		return err
	}
	for _, k := range kept {
		var has *pb.Archive
		if !k.Found.IsZero() {
			a.Say(fmt.Sprintf("cache %q is found", k.From))
			has = &pb.Archive{Digest: k.Found.Digest, Size: k.Found.Size, Cache: true}
			to.Archives = append(to.Archives, has)
		}
		if k.IsSaved() {
			to.Caches = append(to.Caches, &pb.PipelineCache{
				Name: e.run.CacheName(k.Key), Key: e.secrets.Mask(k.Key), Paths: k.Paths, Has: has,
				Untracked: k.Untracked, OnSuccess: k.Wanted(true), OnFailure: k.Wanted(false),
			})
		}
	}
	return nil
}
