package action

import (
	"fmt"
	"strings"
)

// boxOptions are the options of a container or of a service: flags of docker create.
type boxOptions struct {
	isService bool
	env       map[string]string // gets variables
	keys      map[string]any    // gets the keys of an image, or of a service, in a .gitlab-ci.yml
	ignored   []string          // flags without an effect
}

// healthFlags are the flags that describe a health check, with the keys of a Compose file.
var healthFlags = map[string]string{
	"--health-cmd": "test", "--health-interval": "interval", "--health-timeout": "timeout",
	"--health-retries": "retries", "--health-start-period": "start_period",
}

// read reads the flags in text.
func (o *boxOptions) read(text string) error {
	words, err := splitWords(text)
	if err != nil {
		return fmt.Errorf("options: %w", err)
	}
	health := map[string]any{}
	for len(words) > 0 {
		flag, value, has := strings.Cut(words[0], "=")
		words = words[1:]
		if flag == "--no-healthcheck" && o.isService {
			health["disable"] = true
			continue
		}
		if !has && len(words) > 0 && !strings.HasPrefix(words[0], "-") {
			value, words, has = words[0], words[1:], true
		}
		switch key := healthFlags[flag]; {
		case key != "" && has && o.isService:
			health[key] = value
		case flag == "--entrypoint" && has && o.isService:
			o.keys["entrypoint"] = []string{value}
		case (flag == "--user" || flag == "-u") && has && !o.isService:
			o.keys["docker"] = map[string]any{"user": value}
		case (flag == "--env" || flag == "-e") && strings.Contains(value, "="):
			name, text, _ := strings.Cut(value, "=")
			o.env[name] = text
		default:
			o.ignored = append(o.ignored, flag)
		}
	}
	if len(health) > 0 {
		o.keys["healthcheck"] = health
	}
	return nil
}

// splitWords splits a text at blanks that are not between quotes. A backslash before a quote or a backslash stands for
// that itself.
func splitWords(text string) (words []string, err error) {
	var word strings.Builder
	open, quote := false, byte(0)
	for i := 0; i < len(text); i++ {
		c := text[i]
		switch {
		case c == '\\' && quote != '\'' && i+1 < len(text) && strings.IndexByte(`"'\`, text[i+1]) >= 0:
			i++
			word.WriteByte(text[i])
			open = true
		case quote != 0 && c == quote:
			quote = 0
		case quote == 0 && (c == '"' || c == '\''):
			quote, open = c, true
		case quote == 0 && strings.IndexByte(" \t\r\n", c) >= 0:
			if open {
				words, open = append(words, word.String()), false
				word.Reset()
			}
		default:
			word.WriteByte(c)
			open = true
		}
	}
	if quote != 0 {
		return nil, fmt.Errorf("the quote %c has no end", quote)
	}
	if open {
		words = append(words, word.String())
	}
	return words, nil
}
