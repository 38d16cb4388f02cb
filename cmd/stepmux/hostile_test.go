package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"reflect"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/instance"
	"github.com/stepmux/stepmux/instance/batch"
	"github.com/stepmux/stepmux/instance/control"
	"github.com/stepmux/stepmux/instance/doctor"
	"github.com/stepmux/stepmux/internal/standalone"
	"github.com/stepmux/stepmux/internal/standalone/inspect"
	"github.com/stepmux/stepmux/internal/standalone/replay"
	"github.com/stepmux/stepmux/remote/step/engine"
)

// hostile is text of a VM that clears the screen, forges a line, turns the direction of reading, and has no end.
var hostile = "\x1b[2J\x1b]0;title\x07\rpart\nFORGED: all is well\u202e\u009b31m\xff" +
	strings.Repeat("a\nFORGED", 1<<16)

// fill sets every string that v leads to, at most depth levels below.
func fill(v reflect.Value, depth int) {
	if depth == 0 || v.Type() == reflect.TypeFor[time.Time]() {
		return
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString(hostile)
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem(), depth-1)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fill(v.Index(0), depth-1)
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		if v.Type().Elem().Kind() == reflect.String {
			v.SetMapIndex(reflect.ValueOf(hostile), reflect.ValueOf(hostile))
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Field(i).CanSet() {
				fill(v.Field(i), depth-1)
			}
		}
	case reflect.Interface:
		if v.Type() == reflect.TypeFor[error]() {
			v.Set(reflect.ValueOf(errors.New(hostile)))
		}
	default: // it holds no text
	}
}

func filled[T any]() (v T) {
	fill(reflect.ValueOf(&v).Elem(), 8)
	return v
}

// The JSON of ps had controls above ASCII and changes of direction as they were.
//
//stepmux:faults users | JSON output has characters that a terminal obeys
func TestHostileTextInJSONReachesNoTerminal(t *testing.T) {
	const text = "\x1b[2J\x07\u009b31m\u202e\u2028\U000e0001 \U0001f600\u00e9"
	var out bytes.Buffer
	require.NoError(t, writeJSON(&out, map[string]string{text: text}))
	require.NoError(t, showComparison(&out, &inspect.Comparison{Differences: []inspect.Difference{{Pointer: text}}}, true))
	shown := out.String()
	require.Equal(t, 2, strings.Count(shown, "\n"))
	control := strings.IndexFunc(shown, func(c rune) bool { return c != '\n' && !unicode.IsPrint(c) })
	require.Equal(t, -1, control, "%q", shown)
	require.Contains(t, shown, "\U0001f600\u00e9", "other text is left as it is")
	first, _, _ := strings.Cut(shown, "\n")
	var read map[string]string
	require.NoError(t, json.Unmarshal([]byte(first), &read))
	require.Equal(t, map[string]string{text: text}, read)
}

// Messages of a VM's jobs, and the status of its calls, came to the terminal as they were, and at any length.
//
//stepmux:faults executor | Text from a VM clears the manager's terminal, forges a line there, or has no end
//stepmux:with cmd/stepmux.TestScripts, internal/termtext.FuzzLine
func TestHostileTextReachesNoTerminal(t *testing.T) {
	failed := filled[batch.Report]()
	failed.Err = &instance.BuildError{Reason: instance.RunnerSystemFailure, Err: errors.New(hostile)}
	for name, write := range map[string]func(out, err io.Writer){
		"the program's error": func(_, err io.Writer) { showError(err, errors.New(hostile)) },
		"run": func(out, err io.Writer) {
			r := newReporter("text", out, err, func(error) {})
			r.ended(failed)
			r.say(hostile)
			stat := filled[instance.Stat]()
			failed.Instance = stat.Instances[0].ID
			r.summary([]batch.Report{failed}, stat)
			require.NoError(t, r.close(t.Context(), t.Context(), time.Minute))
		},
		"run's JSON": func(out, err io.Writer) {
			r := newReporter("json", out, err, func(error) {})
			r.ended(batch.Report{Err: failed.Err, Cleanup: failed.Cleanup})
			require.NoError(t, r.close(t.Context(), t.Context(), time.Minute))
		},
		"the log": func(_, err io.Writer) {
			f := logFlags{level: "warn", format: "text"}
			f.logger(err).Warn("a message", "error", errors.New(hostile), "text", hostile)
		},
		"the log's JSON": func(_, err io.Writer) {
			f := logFlags{level: "warn", format: "json"}
			f.logger(err).Warn("a message", "error", errors.New(hostile), "text", hostile)
		},
		"local": func(_, err io.Writer) {
			talk := standalone.NewTalk(err, false)
			talk.Say(hostile)
			talk.Notice(hostile)
			talk.Observe(engine.StepResult{Status: engine.Running, Kind: engine.Command, Path: []string{hostile}})
			report := filled[standalone.Report]()
			talk.End(&report)
		},
		"replay": func(_, err io.Writer) {
			r := filled[replay.Result]()
			showReplay(standalone.NewTalk(err, false), &r)
		},
		"trace diff": func(out, _ io.Writer) {
			c := filled[inspect.Comparison]()
			require.NoError(t, showComparison(out, &c, false))
		},
		"doctor": func(out, _ io.Writer) {
			r := filled[doctor.Report]()
			require.NoError(t, r.WriteText(out))
		},
		"ps": func(out, _ io.Writer) {
			s := filled[control.Status]()
			require.NoError(t, s.WriteText(out, time.Now(), true))
		},
		"validate": func(out, _ io.Writer) { _ = showProblems(out, filled[standalone.Verdict]()) },
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			write(&out, &out)
			require.Greater(t, out.Len(), 10)
			require.Less(t, out.Len(), 400<<10, "it is bounded")
			shown := out.String()
			require.True(t, utf8.ValidString(shown))
			for line := range strings.Lines(shown) {
				require.NotRegexp(t, `^(FORGED|part)`, line)
				i := strings.IndexFunc(line, func(c rune) bool { return c != '\n' && !unicode.IsPrint(c) })
				require.Equal(t, -1, i, "%.200q", line)
			}
		})
	}
}
