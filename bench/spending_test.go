package bench

import "time"

// spending is the processor time of transfers. One transfer is too short for the clock of /proc; all
// together are not.
type spending struct {
	gigabytes  float64
	vm, client time.Duration
}

// rate measures a transfer of n bytes in MB/s, and its cost for both ends.
func (r *results) rate(name string, n int64, transfer func() error) error {
	vm, err := vmCPU()
	if err != nil {
		return err
	}
	client, err := clientCPU()
	if err != nil {
		return err
	}
	begin := time.Now()
	if err := transfer(); err != nil {
		return err
	}
	took := time.Since(begin)
	clientAfter, err := clientCPU()
	if err != nil {
		return err
	}
	vmAfter, err := vmCPU()
	if err != nil {
		return err
	}
	r.add(name, float64(n)/mega/took.Seconds())
	if r.spent[name] == nil {
		r.spent[name] = new(spending)
	}
	s := r.spent[name]
	s.gigabytes += float64(n) / giga
	s.vm += vmAfter - vm
	s.client += clientAfter - client
	return nil
}

// costs reports the processor time of both ends for each name, as name-vm-s/GB and name-client-s/GB.
func (r *results) costs(names ...string) {
	for _, name := range names {
		if s := r.spent[name]; s != nil && s.gigabytes > 0 {
			r.b.ReportMetric(s.vm.Seconds()/s.gigabytes, name+"-vm-s/GB")
			r.b.ReportMetric(s.client.Seconds()/s.gigabytes, name+"-client-s/GB")
		}
	}
}
