package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"syscall"
)

// maxAnswer bounds an answer, in bytes. A manager with ten thousand instances needs less.
const maxAnswer = 64 << 20

// ErrSeveral is wrapped by the error of NewClient without a path if several managers are running.
var ErrSeveral = errors.New("runs are under way")

// ErrNone is wrapped by the error of NewClient without a path if no manager is running.
var ErrNone = errors.New("no stepmux run of this user is under way")

// Client queries a manager. It holds no connection and is safe for concurrent use.
type Client struct {
	path string
	http http.Client
}

// NewClient returns a client of the manager whose socket is at path. If path is empty, of the only manager of this
// user.
func NewClient(path string) (*Client, error) {
	if path == "" {
		var err error
		if path, err = only(Dir()); err != nil {
			return nil, err
		}
	}
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", path)
	}
	return &Client{path, http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: dial}}}, nil
}

// only returns the path of the only socket in a directory that a manager listens on.
func only(dir string) (string, error) {
	if err := CheckDir(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	alive := slices.DeleteFunc(sockets(dir), func(path string) bool { return !isAlive(path) })
	switch len(alive) {
	case 0:
		return "", fmt.Errorf("%w (there is no socket in %s); "+
			"if it was started with --control, or by another user, name its socket with --control", ErrNone, dir)
	case 1:
		return alive[0], nil
	default:
		return "", fmt.Errorf("%d %w; name the socket of one with --control: %s", len(alive), ErrSeveral,
			strings.Join(alive, " "))
	}
}

// Status asks for the manager's status.
func (c *Client) Status(ctx context.Context) (Status, error) {
	var s Status
	err := c.do(ctx, http.MethodGet, "/v1/status", &s)
	return s, err
}

// Drain asks the manager to drain an instance.
func (c *Client) Drain(ctx context.Context, id string) error {
	return c.do(ctx, http.MethodPost, "/v1/instances/"+url.PathEscape(id)+"/drain", nil)
}

// Undrain undoes Drain.
func (c *Client) Undrain(ctx context.Context, id string) error {
	return c.do(ctx, http.MethodPost, "/v1/instances/"+url.PathEscape(id)+"/undrain", nil)
}

func (c *Client) do(ctx context.Context, method, path string, to any) error {
	req, err := http.NewRequestWithContext(ctx, method, "http://stepmux"+path, nil)
	if err != nil {
		return fmt.Errorf("ask stepmux run: %w", err)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return c.doError(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return c.doError(err)
	}
	if resp.StatusCode >= 300 {
		if p := (problem{}); json.Unmarshal(body, &p) == nil && p.Error != "" {
			return errors.New(p.Error)
		}
		return fmt.Errorf("ask stepmux run at %s: it answered %s", c.path, resp.Status)
	}
	if to == nil {
		return nil
	}
	if err := json.Unmarshal(body, to); err != nil {
		return fmt.Errorf("ask stepmux run at %s: its answer is not valid: %w", c.path, err)
	}
	return nil
}

func (c *Client) doError(err error) error {
	if wrapped := (*url.Error)(nil); errors.As(err, &wrapped) {
		err = wrapped.Err
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("no stepmux run has its control socket at %s", c.path)
	case errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("no process listens at %s: the stepmux run has died, or this is not a control socket", c.path)
	case errors.Is(err, fs.ErrPermission), errors.Is(err, io.EOF), errors.Is(err, syscall.ECONNRESET):
		return fmt.Errorf("ask stepmux run at %s: %w (only the user that started it, and root, may)", c.path, err)
	default:
		return fmt.Errorf("ask stepmux run at %s: %w", c.path, err)
	}
}
