package elastic_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/instance/elastic"
)

func TestAConfigurationThatCannotWorkIsRefused(t *testing.T) {
	yes := true
	for _, test := range []struct {
		cfg  elastic.Config
		want string
	}{
		{elastic.Config{}, "max-instances 0: use 1 to 10000"},
		{elastic.Config{MaxInstances: 10_001}, "max-instances 10001"},
		{elastic.Config{MaxInstances: 1, Capacity: -1}, "capacity -1: use 1 to 1000"},
		{elastic.Config{MaxInstances: 1, MaxUses: -1}, "max-uses -1"},
		{elastic.Config{MaxInstances: 1, MaxAge: time.Second}, "max-age 1s: use at least 1m0s"},
		{elastic.Config{MaxInstances: 1, Rate: -1}, "throttle: rate -1"},
		{elastic.Config{MaxInstances: 1, Burst: -1}, "throttle: burst -1"},
		{elastic.Config{MaxInstances: 1, Rules: make([]elastic.Rule, 101)}, "101 policies"},
		{of(elastic.Rule{IdleCount: 3}), "policy 1: idle-count 3: max-instances VMs have 0 to 2 slots"},
		{of(elastic.Rule{IdleCount: -1}), "policy 1: idle-count -1"},
		{of(elastic.Rule{IdleTime: -time.Second}), "policy 1: idle-time -1s is negative"},
		{of(elastic.Rule{ScaleFactor: -1}), "policy 1: scale-factor -1"},
		{of(elastic.Rule{ScaleFactorLimit: -1}), "policy 1: scale-factor-limit -1"},
		{of(elastic.Rule{ScaleFactorLimit: 1}), "policy 1: scale-factor-limit needs scale-factor"},
		{of(elastic.Rule{TimeZone: "UTC"}), "policy 1: timezone needs periods"},
		{of(elastic.Rule{Periods: make([]string, 101)}), "policy 1: 101 periods"},
		{of(elastic.Rule{Preemptive: &yes}), "policy 1: preemptive needs idle-count"},
		{of(in("Mars", "* * * * *")), `policy 1: timezone "Mars": use a name such as Europe/Berlin`},
		{of(in("", "* *")), `policy 1: period "* *": use five fields (minute, hour, day of the month`},
		{of(in("", "60 * * * *")), `policy 1: period "60 * * * *": minute: "60" is not a value from 0 to 59`},
		{of(in("", "* * 0 * *")), `policy 1: period "* * 0 * *": day of the month: "0" is not a value from 1 to 31`},
		{of(in("", "* 9-5 * * *")), `policy 1: period "* 9-5 * * *": hour: "9-5": the range ends before it begins`},
		{of(in("", "*/0 * * * *")), `policy 1: period "*/0 * * * *": minute: "*/0": the step is a number from 1 to 59`},
		{of(in("", "* * * * fry")), `policy 1: period "* * * * fry": day of the week: "fry" is not a value`},
	} {
		_, err := elastic.New(test.cfg)
		require.ErrorContains(t, err, test.want)
		require.Less(t, len(err.Error()), 300)
	}
}

func of(r elastic.Rule) elastic.Config {
	return elastic.Config{MaxInstances: 2, Rules: []elastic.Rule{r}}
}

// in returns a rule that keeps a slot free in some periods.
func in(zone string, periods ...string) elastic.Rule {
	return elastic.Rule{Periods: periods, TimeZone: zone, IdleCount: 1}
}

func TestPeriodsAreThoseOfCron(t *testing.T) {
	for _, test := range []struct {
		rule elastic.Rule
		at   string // UTC
		want int
	}{
		{in("UTC", "* 8-17 * * mon-fri"), "2026-03-02T08:00:00Z", 1}, // a Monday
		{in("UTC", "* 8-17 * * mon-fri"), "2026-03-02T17:59:59Z", 1},
		{in("UTC", "* 8-17 * * mon-fri"), "2026-03-02T18:00:00Z", 0},
		{in("UTC", "* 8-17 * * mon-fri"), "2026-03-01T08:00:00Z", 0},
		{in("UTC", "* 8-17 * * Mon-Fri"), "2026-03-06T08:00:00Z", 1},
		{in("UTC", "* * * * 0"), "2026-03-01T08:00:00Z", 1},
		{in("UTC", "* * * * 7"), "2026-03-01T08:00:00Z", 1},
		{in("UTC", "* * * * 5-7"), "2026-03-01T08:00:00Z", 1},
		{in("UTC", "*/15 * * * *"), "2026-03-01T08:45:00Z", 1},
		{in("UTC", "*/15 * * * *"), "2026-03-01T08:46:00Z", 0},
		{in("UTC", "5/10 * * * *"), "2026-03-01T08:55:00Z", 1},
		{in("UTC", "5/10 * * * *"), "2026-03-01T08:50:00Z", 0},
		{in("UTC", "0-20/10,59 * * * *"), "2026-03-01T08:59:00Z", 1},
		{in("UTC", "0-20/10,59 * * * *"), "2026-03-01T08:30:00Z", 0},
		{in("UTC", "* * 1 3 *"), "2026-03-01T08:59:00Z", 1},
		{in("UTC", "* * 1 apr-jun,mar *"), "2026-03-01T08:59:00Z", 1},
		{in("UTC", "* * 1 4 *"), "2026-03-01T08:59:00Z", 0},
		{in("UTC", "* * 13 * fri"), "2026-03-06T00:00:00Z", 1}, // either, if both are given
		{in("UTC", "* * 13 * fri"), "2026-04-13T00:00:00Z", 1},
		{in("UTC", "* * 13 * fri"), "2026-04-12T00:00:00Z", 0},
		{in("UTC", "* * */2 * fri"), "2026-03-06T00:00:00Z", 0}, // "*/2" counts as not given, as in cron
		{in("UTC", "0 * * * *", "1 * * * *"), "2026-03-01T00:01:00Z", 1},
		{in("America/New_York", "* 9 * * *"), "2026-03-02T14:00:00Z", 1},
		{in("America/New_York", "* 9 * * *"), "2026-03-09T14:00:00Z", 0}, // since summer time
		{in("America/New_York", "* 9 * * *"), "2026-03-09T13:00:00Z", 1},
		{in("America/New_York", "* 2 8 3 *"), "2026-03-08T07:30:00Z", 0}, // this hour is left out
		{in("", ""), "2026-03-02T08:00:00Z", 0},
	} {
		at, err := time.Parse(time.RFC3339, test.at)
		require.NoError(t, err)
		if test.rule.Periods[0] == "" {
			test.rule.Periods, test.want = nil, 1
		}
		d := policy(t, of(test.rule)).Next(elastic.State{}, at)
		require.Equal(t, test.want, d.Demand, "%v at %s", test.rule.Periods, test.at)
	}
}

func TestTheLastRuleThatMatchesCounts(t *testing.T) {
	p := policy(t, elastic.Config{MaxInstances: 10, Rules: []elastic.Rule{
		{IdleCount: 1},
		{IdleCount: 5, Periods: []string{"* 8-17 * * *"}, TimeZone: "UTC"},
		{IdleCount: 3, Periods: []string{"* 12 * * *"}, TimeZone: "UTC"},
	}})
	for hour, want := range map[int]int{0: 1, 8: 5, 12: 3, 13: 5, 18: 1} {
		at := time.Date(2026, 3, 2, hour, 0, 0, 0, time.UTC)
		require.Equal(t, want, p.Next(elastic.State{}, at).Demand)
	}
	d := p.Next(elastic.State{}, now.Add(30*time.Second))
	require.Equal(t, now.Add(time.Minute), d.Wake, "another rule may count then")
}

func FuzzPeriod(f *testing.F) {
	f.Add("* 8-17 * * mon-fri")
	f.Add("*/5,3-9/2 0 1 jan 7")
	f.Fuzz(func(t *testing.T, text string) {
		p, err := elastic.New(of(elastic.Rule{Periods: []string{text}, TimeZone: "UTC", IdleCount: 1}))
		if err != nil {
			require.Less(t, len(err.Error()), 1000)
			return
		}
		p.Next(elastic.State{}, now)
	})
}
