package archive

import (
	"context"
	"os"
)

// Names returns the names in an archive, of at most as many entries as Extract unpacks. It writes nothing.
func Names(ctx context.Context, file *os.File) (map[string]bool, error) {
	u := &unpacker{
		ctx: ctx, bounds: Bounds{Bytes: DefaultBytes, Entries: maxEntries, OutsideLinks: true}, left: DefaultBytes,
		seen: map[string]bool{},
	}
	if err := u.check(file); err != nil {
		return nil, err
	}
	return u.seen, nil
}
