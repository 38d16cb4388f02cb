package doctor

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"github.com/stepmux/stepmux/instance/manager/gitlabdoor"
)

// ExamineGitLab examines a GitLab server for a manager that takes its jobs, and the files that the configuration names.
// It takes no job. The server lists the check as a manager of the runner, s_stepmuxcheck. ctx bounds it, and 30 s do.
func ExamineGitLab(ctx context.Context, cfg gitlabdoor.DoorConfig) Report {
	ctx, cancel := context.WithTimeout(ctx, serverTimeout)
	defer cancel()
	start := time.Now()
	r := Report{Instance: cfg.Name, Addr: cfg.URL, of: "jobs"}
	if u, err := url.Parse(cfg.URL); err == nil {
		r.Addr = u.Redacted()
	}
	formed := r.serverURL(cfg.URL)
	r.secretFile(checkToken, cfg.TokenFile, cfg.Token, "it is that of a runner that was created on the server")
	token, err := cfg.Token()
	if !formed || err != nil {
		r.skip("url or token cannot be used", checkAnswer)
	} else {
		r.gitLabAnswers(ctx, cfg, token)
	}
	r.finish(time.Since(start))
	return r
}

// gitLabAnswers asks the server whether it knows the runner.
func (r *Report) gitLabAnswers(ctx context.Context, cfg gitlabdoor.DoorConfig, token string) {
	client, err := gitlabdoor.NewClient(gitlabdoor.Config{
		URL: cfg.URL, Files: cfg.Files, Token: token, System: "s_stepmuxcheck",
		Info: gitlabdoor.Info{Name: "stepmux", Executor: "stepmux"},
	})
	if err != nil {
		r.add(failure(checkAnswer, err.Error(), "let the files of ca, cert and key be read"))
		return
	}
	defer client.Close()
	runner, err := client.Verify(ctx)
	switch {
	case gitlabdoor.StatusOf(err) == http.StatusForbidden:
		r.add(failure(checkAnswer, err.Error(), "create a runner on the server, and put its token, glrt-..., into the file"))
	case err != nil:
		r.add(failure(checkAnswer, err.Error(), adviceFor(err)))
	case runner.Expires.IsZero():
		r.add(okay(checkAnswer, fmt.Sprintf("the token is that of the runner %d", runner.ID)))
	default:
		left := time.Until(runner.Expires)
		detail := fmt.Sprintf("the token is that of the runner %d, until %s", runner.ID,
			runner.Expires.UTC().Format(time.RFC3339))
		if left < 7*24*time.Hour {
			r.add(warning(checkAnswer, detail, "create a new token, and put it into the file",
				"jobs are taken after it has ended, too"))
			return
		}
		r.add(okay(checkAnswer, detail))
	}
}
