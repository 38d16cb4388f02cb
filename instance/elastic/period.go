package elastic

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// period is a set of minutes, as cron describes it: a set of each field's values, as bits.
type period struct {
	minutes, hours, days, months, weekdays uint64
	// anyDay and anyWeekday say that the field is not restricted. If both are, a day matches that is in one of them.
	anyDay, anyWeekday bool
}

// field is one of the five fields of a period.
type field struct {
	name        string
	first, last int
	names       []string // of the values from first on
}

var fields = [...]field{
	{name: "minute", last: 59},
	{name: "hour", last: 23},
	{name: "day of the month", first: 1, last: 31},
	{
		name: "month", first: 1, last: 12,
		names: []string{"jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"},
	},
	{name: "day of the week", last: 7, names: []string{"sun", "mon", "tue", "wed", "thu", "fri", "sat"}}, // 7 is Sunday
}

// parsePeriod reads a period, such as "* 8-17 * * mon-fri".
func parsePeriod(text string) (p period, err error) {
	words := strings.Fields(text)
	if len(words) != len(fields) {
		return p, fmt.Errorf("use five fields (minute, hour, day of the month, month, day of the week), not %d", len(words))
	}
	sets := [len(fields)]*uint64{&p.minutes, &p.hours, &p.days, &p.months, &p.weekdays}
	for i, word := range words {
		if *sets[i], err = fields[i].parse(word); err != nil {
			return p, fmt.Errorf("%s: %w", fields[i].name, err)
		}
	}
	p.weekdays |= p.weekdays >> 7 & 1
	p.anyDay, p.anyWeekday = strings.HasPrefix(words[2], "*"), strings.HasPrefix(words[4], "*")
	return p, nil
}

// parse reads a list of values, ranges and steps.
func (f *field) parse(text string) (set uint64, err error) {
	for part := range strings.SplitSeq(text, ",") {
		span, stepText, stepped := strings.Cut(part, "/")
		step := 1
		if stepped {
			if step, err = strconv.Atoi(stepText); err != nil || step < 1 || step > f.last {
				return 0, fmt.Errorf("%.40q: the step is a number from 1 to %d", part, f.last)
			}
		}
		from, to := f.first, f.last
		if span != "*" {
			low, high, isRange := strings.Cut(span, "-")
			if from, err = f.value(low); err != nil {
				return 0, err
			}
			switch {
			case isRange:
				if to, err = f.value(high); err != nil {
					return 0, err
				}
			case !stepped: // "5/10" is from 5 on
				to = from
			}
		}
		if from > to {
			return 0, fmt.Errorf("%.40q: the range ends before it begins", part)
		}
		for v := from; v <= to; v += step {
			set |= 1 << v
		}
	}
	return set, nil
}

func (f *field) value(text string) (int, error) {
	for i, name := range f.names {
		if strings.EqualFold(text, name) {
			return f.first + i, nil
		}
	}
	v, err := strconv.Atoi(text)
	if err != nil || v < f.first || v > f.last {
		return 0, fmt.Errorf("%.40q is not a value from %d to %d", text, f.first, f.last)
	}
	return v, nil
}

func (p *period) matches(t time.Time) bool {
	in := func(set uint64, v int) bool { return set>>v&1 == 1 }
	day, weekday := in(p.days, t.Day()), in(p.weekdays, int(t.Weekday()))
	isDay := day && weekday
	if !p.anyDay && !p.anyWeekday {
		isDay = day || weekday
	}
	return isDay && in(p.minutes, t.Minute()) && in(p.hours, t.Hour()) && in(p.months, int(t.Month()))
}
