// redsync's Mutex, measured: the tasks are goroutines.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
	"golang.org/x/sys/unix"
)

type bench struct {
	redsync *redsync.Redsync
	locks   map[string]*redsync.Mutex
}

// One acquisition: the task, and when it acquired the lock.
type section struct {
	task       int
	acquiredNs int64
}

func newBench(client *redis.Client) *bench {
	if err := client.Ping(context.Background()).Err(); err != nil {
		panic(err)
	}
	fmt.Printf("ready redsync %s %d\n", version(), now())
	return &bench{redsync: redsync.New(goredis.NewPool(client)), locks: map[string]*redsync.Mutex{}}
}

// All processes of the machine share this clock.
func now() int64 {
	var at unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &at); err != nil {
		panic(err)
	}
	return at.Nano()
}

// The library gives up after some tries; this tries again. To the library a request that takes too long is a failed
// try.
func acquireLock(lock *redsync.Mutex) error {
	for {
		err := lock.Lock()
		var taken *redsync.ErrTaken
		again := errors.As(err, &taken) || errors.Is(err, redsync.ErrFailed) || errors.Is(err, context.DeadlineExceeded)
		if !again {
			return err
		}
	}
}

func releaseLock(lock *redsync.Mutex) error {
	if ok, err := lock.Unlock(); err != nil || ok {
		return err
	}
	return errors.New("the lock was lost")
}

func (d *bench) acquire(name string) (string, error) {
	lock, calledNs := d.redsync.NewMutex(name), now()
	if err := acquireLock(lock); err != nil {
		return "", err
	}
	acquiredNs := now()
	d.locks[name] = lock
	return fmt.Sprintf("acquired %d %d", calledNs, acquiredNs), nil
}

func (d *bench) release(name string, pause time.Duration) (string, error) {
	time.Sleep(pause)
	calledNs := now()
	return fmt.Sprintf("released %d", calledNs), releaseLock(d.locks[name])
}

func (d *bench) contend(name string, tasks int, during time.Duration) (string, error) {
	all, err := d.sections(name, tasks, during)
	handovers, served := 0, map[int]bool{}
	for at, section := range all {
		served[section.task] = true
		if at > 0 && section.task != all[at-1].task {
			handovers++
		}
	}
	return fmt.Sprintf("contended %d %d %d", len(all), handovers, len(served)), err
}

func (d *bench) trace(name string, tasks int, during time.Duration) (string, error) {
	all, err := d.sections(name, tasks, during)
	answer := strings.Builder{}
	answer.WriteString("trace")
	for _, section := range all {
		fmt.Fprintf(&answer, " %d@%d", section.task, section.acquiredNs)
	}
	return answer.String(), err
}

// The acquisitions of all tasks, in the order of time.
func (d *bench) sections(name string, tasks int, during time.Duration) ([]section, error) {
	untilNs := now() + during.Nanoseconds()
	seen, errs := make([][]section, tasks), make([]error, tasks)
	var all sync.WaitGroup
	for task := range tasks {
		all.Go(func() { seen[task], errs[task] = d.runTask(name, task, untilNs) })
	}
	all.Wait()
	sections := slices.Concat(seen...)
	slices.SortFunc(sections, func(a, b section) int { return cmp.Compare(a.acquiredNs, b.acquiredNs) })
	return sections, errors.Join(errs...)
}

func (d *bench) runTask(name string, task int, untilNs int64) ([]section, error) {
	var seen []section
	lock := d.redsync.NewMutex(name)
	for now() < untilNs {
		if err := acquireLock(lock); err != nil {
			return seen, err
		}
		acquiredNs := now()
		if err := releaseLock(lock); err != nil {
			return seen, err
		}
		if acquiredNs < untilNs {
			seen = append(seen, section{task, acquiredNs})
		}
	}
	return seen, nil
}

func (d *bench) answer(request string, arguments []string) (string, error) {
	name := arguments[0]
	switch request {
	case "acquire":
		return d.acquire(name)
	case "release":
		return d.release(name, time.Duration(number(arguments, 1))*time.Microsecond)
	case "contend":
		return d.contend(name, number(arguments, 1), time.Duration(number(arguments, 2))*time.Millisecond)
	case "trace":
		return d.trace(name, number(arguments, 1), time.Duration(number(arguments, 2))*time.Millisecond)
	default:
		return "", fmt.Errorf("there is no request %q", request)
	}
}
