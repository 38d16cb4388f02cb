package state

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/nats-io/nats.go/jetstream"
)

// keyValue is a value of a key of a bucket. The text is nil if the key is not there.
type keyValue struct {
	key      string
	text     []byte
	revision uint64 // 0: it is not known, and read
}

// read returns the value of a key.
func (s *Store) read(ctx context.Context, bucket jetstream.KeyValue, key string) (v keyValue, err error) {
	v.key = key
	err = s.Persist(ctx, func(ctx context.Context) error {
		entry, err := bucket.Get(ctx, key)
		if err == nil {
			v.text, v.revision = entry.Value(), entry.Revision()
		} else if errors.Is(err, jetstream.ErrKeyNotFound) || errors.Is(err, jetstream.ErrInvalidKey) {
			return nil
		}
		return err
	})
	return v, err
}

// watches tell this manager's readers of keys of each write. The zero value is ready for use. It is safe for
// concurrent use.
type watches struct {
	mu  sync.Mutex                     // guards the following
	all map[string]map[*watch]struct{} // by bucket and key
}

// watch is a reader's.
type watch struct {
	at   []string            // buckets with keys
	more chan struct{}       // has room for one: something is new
	news map[string]keyValue // the latest, by key; watches.mu guards it
}

// open returns a watch of keys, which gets all that is written from now on. The caller calls close.
func (w *watches) open(bucket string, keys []string) *watch {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.all == nil {
		w.all = map[string]map[*watch]struct{}{}
	}
	made := &watch{more: make(chan struct{}, 1), news: map[string]keyValue{}}
	for _, key := range keys {
		at := bucket + "." + key
		if w.all[at] == nil {
			w.all[at] = map[*watch]struct{}{}
		}
		w.all[at][made] = struct{}{}
		made.at = append(made.at, at)
	}
	return made
}

func (w *watches) close(of *watch) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, at := range of.at {
		if delete(w.all[at], of); len(w.all[at]) == 0 {
			delete(w.all, at)
		}
	}
}

// tell tells of a value. Values of a key may be told in another order than they were written.
func (w *watches) tell(bucket string, v keyValue) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for of := range w.all[bucket+"."+v.key] {
		last, known := of.news[v.key]
		if known && v.revision != 0 && (last.revision == 0 || last.revision > v.revision) {
			continue
		}
		of.news[v.key] = v
		select {
		case of.more <- struct{}{}:
		default:
		}
	}
}

// take returns the news.
func (w *watches) take(of *watch) (news []keyValue) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, v := range of.news {
		news = append(news, v)
	}
	clear(of.news)
	return news
}

// watch is home.watch where this manager alone writes.
func (h *embedded) watch(
	ctx context.Context, bucket jetstream.KeyValue, keys []string, take func([]keyValue) (more bool, err error),
) error {
	of := h.s.watches.open(bucket.Bucket(), keys)
	defer h.s.watches.close(of)
	had := map[string]uint64{} // revisions
	var news []keyValue
	for _, key := range keys {
		news = append(news, keyValue{key: key})
	}
	for first := true; ; first = false {
		fresh := news[:0]
		for _, v := range news {
			var err error
			if v.revision == 0 {
				if v, err = h.s.read(ctx, bucket, v.key); err != nil {
					return err
				}
			}
			if first || v.revision == 0 || v.revision > had[v.key] {
				had[v.key] = v.revision
				fresh = append(fresh, v)
			}
		}
		if len(fresh) > 0 {
			if more, err := take(fresh); err != nil || !more {
				return err
			}
		}
		select {
		case <-of.more:
			news = h.s.watches.take(of)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// watch is home.watch by the servers.
func (h *joined) watch(
	ctx context.Context, bucket jetstream.KeyValue, keys []string, take func([]keyValue) (more bool, err error),
) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for {
		var watch jetstream.KeyWatcher
		err := h.s.Persist(ctx, func(context.Context) (err error) {
			watch, err = bucket.WatchFiltered(ctx, slices.Clone(keys)) // the library writes into them
			return err
		})
		if err != nil {
			return err
		}
		over, err := h.followKeys(ctx, watch, bucket, keys, take)
		_ = watch.Stop() // it may be closed
		if over || err != nil {
			return err
		}
	}
}

// followKeys is watch until the servers' watch breaks.
func (h *joined) followKeys(
	ctx context.Context, watch jetstream.KeyWatcher, bucket jetstream.KeyValue, keys []string,
	take func([]keyValue) (more bool, err error),
) (over bool, err error) {
	var all []keyValue
	present := false // all that was there has come
	for {
		select {
		case entry, ok := <-watch.Updates():
			switch {
			case !ok: // the library could not reopen it after a break of the connection
				return false, nil
			case entry == nil:
				present = true
				// The server that has the watch may be behind the leader: a key that it does not have may be there.
				for _, key := range keys {
					if slices.ContainsFunc(all, func(v keyValue) bool { return v.key == key }) {
						continue
					}
					v, err := h.s.read(ctx, bucket, key)
					if err != nil {
						return false, err
					}
					all = append(all, v)
				}
			default:
				v := keyValue{key: entry.Key(), revision: entry.Revision()}
				if entry.Operation() == jetstream.KeyValuePut {
					v.text = entry.Value()
				}
				all = append(all, v)
			}
			if present {
				if more, err := take(all); err != nil || !more {
					return true, err
				}
				all = nil
			}
		case <-ctx.Done():
			return false, context.Cause(ctx)
		}
	}
}
