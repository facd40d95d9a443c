// Speaks the protocol of ../README.md for redsync's Mutex, over go-redis.
package main

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
	"golang.org/x/sys/unix"
)

type driver struct {
	redsync *redsync.Redsync
	locks   map[string]*redsync.Mutex
}

// A section: who had the lock, and since when.
type section struct {
	task  int
	gotNs int64
}

// All processes of the machine share this clock.
func now() int64 {
	var at unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &at); err != nil {
		panic(err)
	}
	return at.Nano()
}

// It gives up after some tries, and then tries again. A request that takes too long is a failed try to it.
func acquire(lock *redsync.Mutex) error {
	for {
		err := lock.Lock()
		var taken *redsync.ErrTaken
		again := errors.As(err, &taken) || errors.Is(err, redsync.ErrFailed) || errors.Is(err, context.DeadlineExceeded)
		if !again {
			return err
		}
	}
}

func release(lock *redsync.Mutex) error {
	if ok, err := lock.Unlock(); err != nil || ok {
		return err
	}
	return errors.New("the lock was lost")
}

func (d *driver) take(name string) (string, error) {
	lock, askedNs := d.redsync.NewMutex(name), now()
	if err := acquire(lock); err != nil {
		return "", err
	}
	gotNs := now()
	d.locks[name] = lock
	return fmt.Sprintf("got %d %d", askedNs, gotNs), nil
}

func (d *driver) give(name string, pause time.Duration) (string, error) {
	time.Sleep(pause)
	gaveNs := now()
	return fmt.Sprintf("gave %d", gaveNs), release(d.locks[name])
}

func (d *driver) herd(name string, tasks int, during time.Duration) (string, error) {
	all, err := d.sections(name, tasks, during)
	handovers, served := 0, map[int]bool{}
	for at, section := range all {
		served[section.task] = true
		if at > 0 && section.task != all[at-1].task {
			handovers++
		}
	}
	return fmt.Sprintf("herd %d %d %d", len(all), handovers, len(served)), err
}

func (d *driver) turns(name string, tasks int, during time.Duration) (string, error) {
	all, err := d.sections(name, tasks, during)
	answer := strings.Builder{}
	answer.WriteString("turns")
	for _, section := range all {
		fmt.Fprintf(&answer, " %d@%d", section.task, section.gotNs)
	}
	return answer.String(), err
}

// What all tasks had, in the order of time.
func (d *driver) sections(name string, tasks int, during time.Duration) ([]section, error) {
	untilNs := now() + during.Nanoseconds()
	seen, errs := make([][]section, tasks), make([]error, tasks)
	var all sync.WaitGroup
	for task := range tasks {
		all.Go(func() { seen[task], errs[task] = d.contend(name, task, untilNs) })
	}
	all.Wait()
	sections := slices.Concat(seen...)
	slices.SortFunc(sections, func(a, b section) int { return cmp.Compare(a.gotNs, b.gotNs) })
	return sections, errors.Join(errs...)
}

func (d *driver) contend(name string, task int, untilNs int64) ([]section, error) {
	var seen []section
	lock := d.redsync.NewMutex(name)
	for now() < untilNs {
		if err := acquire(lock); err != nil {
			return seen, err
		}
		gotNs := now()
		if err := release(lock); err != nil {
			return seen, err
		}
		if gotNs < untilNs {
			seen = append(seen, section{task, gotNs})
		}
	}
	return seen, nil
}

func (d *driver) answer(request string, arguments []string) (string, error) {
	number := func(at int) int {
		n, err := strconv.Atoi(arguments[at])
		if err != nil {
			panic(err)
		}
		return n
	}
	name := arguments[0]
	switch request {
	case "take":
		return d.take(name)
	case "give":
		return d.give(name, time.Duration(number(1))*time.Microsecond)
	case "herd":
		return d.herd(name, number(1), time.Duration(number(2))*time.Millisecond)
	case "turns":
		return d.turns(name, number(1), time.Duration(number(2))*time.Millisecond)
	default:
		return "", fmt.Errorf("there is no request %q", request)
	}
}

func version() string {
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, dep := range info.Deps {
			if dep.Path == "github.com/go-redsync/redsync/v4" {
				return strings.TrimPrefix(dep.Version, "v")
			}
		}
	}
	return "unknown"
}

func main() {
	options, err := redis.ParseURL(os.Args[1])
	if err != nil {
		panic(err)
	}
	client := redis.NewClient(options)
	if err := client.Ping(context.Background()).Err(); err != nil {
		panic(err)
	}
	d := &driver{redsync: redsync.New(goredis.NewPool(client)), locks: map[string]*redsync.Mutex{}}
	fmt.Printf("ready redsync %s %d\n", version(), now())
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		words := strings.Fields(lines.Text())
		if words[0] == "stop" {
			return
		}
		answer, err := d.answer(words[0], words[1:])
		if err != nil {
			answer = "error " + strings.ReplaceAll(err.Error(), "\n", "; ")
		}
		fmt.Println(answer)
	}
}
