package manager_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http/httptest"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/instance/control"
	"github.com/stepmux/stepmux/instance/manager"
	pb "github.com/stepmux/stepmux/instance/manager/managerv1"
	"github.com/stepmux/stepmux/instance/metrics"
	"github.com/stepmux/stepmux/internal/embeddedvm"
	"github.com/stepmux/stepmux/internal/testing/sshtest"
)

// numbers are what is shown in several places.
type numbers struct{ total, busy, free, outside, waiting int }

// Symptom: the page showed "slots 3, busy 7, free 0", and stepmux_builds_waiting was 17 where ps said 54.
//
//stepmux:faults users | A number that is counted in several places differs between them
//stepmux:with instance/control.TestSlotsAreBusyOrFree, connector/buildlog.TestLinesAboutTheBuildAreNoOutput
func TestAllPlacesShowTheSameNumbers(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.more = sshtest.InProcess(t, embeddedvm.Config{})
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	nowhere := listener.Addr().String()
	require.NoError(t, listener.Close()) // so that its VM is put aside
	counts := metrics.New("test")
	f.change = func(cfg *manager.Config) {
		all := cfg.Group.Instances()
		third := all[0]
		third.ID, third.Addr, third.Labels = "vm-3", nowhere, map[string]string{"k": "v"}
		require.NoError(t, cfg.Group.Update(append(all, third)))
		counts.Watch(cfg.Provider)
	}
	m := f.start(t)
	counts.WatchBacklog(m.m.Backlog)
	wait, open := gate(t)
	defer open()
	for range 2 * f.capacity {
		m.await(m.submit("echo on\n"+wait), "on\n")
	}
	_, err = m.Drain(t.Context(), &pb.DrainRequest{Instances: []string{"vm-2"}})
	require.NoError(t, err)
	for range 3 {
		m.submitLabelled("true")
	}
	const plain = 40
	for range plain {
		m.submit("true")
	}
	page := m.servePage(t, false)
	var scraped string
	require.Eventually(t, func() bool { // the third VM is tried now and then, which costs a build that only it fits
		var all [4]numbers
		all[0], all[1] = fromPS(t, m)
		all[2] = fromPage(t, page)
		all[3], scraped = fromMetrics(t, counts)
		t.Log(all)
		only := all[0].waiting - plain
		want := numbers{f.capacity, f.capacity, 0, f.capacity, plain + only}
		return only > 0 && only <= 3 && all == [4]numbers{want, want, want, want} &&
			strings.Contains(scraped, fmt.Sprintf(`stepmux_queue_builds{cause="out_of_service",labels="k=v"} %d`, only))
	}, sshtest.Bound, 50*time.Millisecond)
	for _, series := range []string{
		`stepmux_queue_builds{cause="full",labels=""} 40`, `stepmux_instances{state="aside"} 1`,
		"stepmux_builds_running 4", "stepmux_logs_removed_total 0",
	} {
		require.Contains(t, scraped, series+"\n")
	}
	for _, series := range []string{
		`stepmux_state_bytes{directory="jetstream"}`, "stepmux_logs_bytes", "stepmux_queue_oldest_seconds",
	} {
		require.Positive(t, valueOf(t, scraped, series), series)
	}
}

// fromPS returns the numbers of ps --output json, and of its text.
func fromPS(t *testing.T, m *running) (inJSON, inText numbers) {
	t.Helper()
	resp, err := m.Status(t.Context(), &pb.StatusRequest{})
	require.NoError(t, err)
	var s control.Status
	require.NoError(t, json.Unmarshal(resp.GetJson(), &s))
	var text strings.Builder
	require.NoError(t, s.WriteText(&text, time.Now(), false))
	found := regexp.MustCompile(`(\d+) slots: (\d+) busy, (\d+) free; (\d+) builds .*\n(\d+) builds wait`).
		FindStringSubmatch(text.String())
	if found == nil {
		return numbers{}, numbers{}
	}
	var n [6]int
	for i := 1; i < len(n); i++ {
		n[i], err = strconv.Atoi(found[i])
		require.NoError(t, err)
	}
	return numbers{s.Slots.Total, s.Slots.Busy, s.Slots.Free, s.Slots.Outside, s.Waiting},
		numbers{n[1], n[2], n[3], n[4], n[5]}
}

// fromPage returns the numbers of the page, which are those of its twin.
func fromPage(t *testing.T, page *browser) numbers {
	t.Helper()
	var o struct {
		Slots   control.Slots
		Waiting int
	}
	page.json("/overview.json", &o)
	text := page.get("/")
	for name, n := range map[string]int{
		"slots": o.Slots.Total, "busy": o.Slots.Busy, "free": o.Slots.Free, "waiting": o.Waiting,
	} {
		if !strings.Contains(text, fmt.Sprintf("<b>%d</b>%s<", n, name)) {
			return numbers{}
		}
	}
	return numbers{o.Slots.Total, o.Slots.Busy, o.Slots.Free, o.Slots.Outside, o.Waiting}
}

// fromMetrics returns the numbers of a scrape, and its text.
func fromMetrics(t *testing.T, counts *metrics.Metrics) (n numbers, text string) {
	t.Helper()
	reply := httptest.NewRecorder()
	counts.Handler().ServeHTTP(reply, httptest.NewRequest("GET", "/metrics", nil))
	all, err := io.ReadAll(reply.Body)
	require.NoError(t, err)
	text = string(all)
	value := func(name string) int { return int(valueOf(t, text, name)) }
	n = numbers{
		total: value("stepmux_slots"), busy: value("stepmux_slots_busy"), free: value("stepmux_slots_free"),
		waiting: value("stepmux_builds_waiting"),
	}
	n.outside = value("stepmux_builds_running") - n.busy
	queued := 0
	for _, line := range regexp.MustCompile(`(?m)^stepmux_queue_builds\{.*\} (\d+)$`).FindAllStringSubmatch(text, -1) {
		part, err := strconv.Atoi(line[1])
		require.NoError(t, err)
		queued += part
	}
	require.Equal(t, n.waiting, queued, "its parts")
	return n, text
}

// valueOf returns the value of a series in a scrape.
func valueOf(t *testing.T, text, series string) float64 {
	t.Helper()
	_, rest, found := strings.Cut(text, "\n"+series+" ")
	require.True(t, found, "%s: %s", series, text)
	number, _, _ := strings.Cut(rest, "\n")
	value, err := strconv.ParseFloat(number, 64)
	require.NoError(t, err)
	return value
}

// Symptom: the time to the first output of a build was that of our own line about its image.
func TestTheFirstOutputIsTheJobs(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	m := f.start(t)
	ours, theirs := m.m.FirstOutputs(t)
	require.Zero(t, ours, "a line about the build")
	require.Positive(t, theirs)
	_, silent := m.wait(m.submit("true"), 0)
	require.Nil(t, silent.GetFirstOutput())
	_, loud := m.wait(m.submit("echo on"), 0)
	require.Positive(t, loud.GetFirstOutput().AsDuration())
}
