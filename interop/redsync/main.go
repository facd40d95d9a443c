// Speaks the protocol of ../README.md for redsync's Mutex, over go-redis.
package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
)

// How long a section of `count` may wait for the lock.
const patience = time.Minute

type driver struct {
	redis   *redis.Client
	redsync *redsync.Redsync
	lock    *redsync.Mutex
}

func (d *driver) hello() string {
	version := "unknown"
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, dep := range info.Deps {
			if dep.Path == "github.com/go-redsync/redsync/v4" {
				version = strings.TrimPrefix(dep.Version, "v")
			}
		}
	}
	return "hello redsync " + version
}

func (d *driver) mutex(name string, lease time.Duration, more ...redsync.Option) *redsync.Mutex {
	options := []redsync.Option{
		redsync.WithExpiry(lease),
		// It gives a request a twentieth of the lease: with the short leases here, less than a busy machine needs.
		redsync.WithTimeoutFactor(0.5),
	}
	return d.redsync.NewMutex(name, append(options, more...)...)
}

func (d *driver) try(name string, lease time.Duration) (string, error) {
	lock := d.mutex(name, lease)
	var taken *redsync.ErrTaken
	if err := lock.TryLock(); errors.As(err, &taken) {
		return "taken", nil
	} else if err != nil {
		return "", err
	}
	d.lock = lock
	return "got", nil
}

func (d *driver) acquire(name string, lease, wait time.Duration) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), wait)
	defer cancel()
	lock := d.mutex(name, lease, redsync.WithTries(math.MaxInt))
	// Only the end of the time ends so many tries.
	if err := lock.LockContext(ctx); errors.Is(err, redsync.ErrFailed) {
		return "taken", nil
	} else if err != nil {
		return "", err
	}
	d.lock = lock
	return "got", nil
}

func (d *driver) extend(lease time.Duration) (string, error) {
	// A mutex extends to the expiry that it was made with, hence another one with the same value.
	lock := d.mutex(d.lock.Name(), lease, redsync.WithValue(d.lock.Value()))
	return ended(lock.Extend())
}

func (d *driver) release() (string, error) {
	lock := d.lock
	d.lock = nil
	return ended(lock.Unlock())
}

// What a mutex says of a lock that it was to have.
func ended(ok bool, err error) (string, error) {
	var taken *redsync.ErrTaken
	switch {
	case ok:
		return "ok", nil
	case errors.As(err, &taken), errors.Is(err, redsync.ErrLockAlreadyExpired):
		return "lost", nil
	default:
		return "", err
	}
}

func (d *driver) count(name, key string, times int, lease time.Duration) (string, error) {
	ctx := context.Background()
	seen, longest := make([]string, 0, times), time.Duration(0)
	for range times {
		asked := time.Now()
		if got, err := d.acquire(name, lease, patience); err != nil {
			return "", err
		} else if got != "got" {
			return "", errors.New("waited in vain")
		}
		longest = max(longest, time.Since(asked))
		number, err := d.redis.Get(ctx, key).Int()
		if err != nil && err != redis.Nil {
			return "", err
		}
		time.Sleep(time.Millisecond)
		if err := d.redis.Set(ctx, key, number+1, 0).Err(); err != nil {
			return "", err
		}
		if released, err := d.release(); err != nil {
			return "", err
		} else if released == "lost" {
			return "", errors.New("lost the lock while counting")
		}
		seen = append(seen, strconv.Itoa(number))
		time.Sleep(time.Duration(rand.Int63n(int64(40 * time.Millisecond))))
	}
	return fmt.Sprintf("counted %d %s", longest.Milliseconds(), strings.Join(seen, " ")), nil
}

func (d *driver) answer(request string, arguments []string) (string, error) {
	// Numbers come last in all requests.
	number := func(at int) int {
		n, err := strconv.Atoi(arguments[at])
		if err != nil {
			panic(err)
		}
		return n
	}
	ms := func(at int) time.Duration { return time.Duration(number(at)) * time.Millisecond }
	switch request {
	case "hello":
		return d.hello(), nil
	case "try":
		return d.try(arguments[0], ms(1))
	case "acquire":
		return d.acquire(arguments[0], ms(1), ms(2))
	case "extend":
		return d.extend(ms(0))
	case "release":
		return d.release()
	case "count":
		return d.count(arguments[0], arguments[1], number(2), ms(3))
	default:
		return "", fmt.Errorf("there is no request %q", request)
	}
}

func main() {
	options, err := redis.ParseURL(os.Args[1])
	if err != nil {
		panic(err)
	}
	client := redis.NewClient(options)
	d := &driver{redis: client, redsync: redsync.New(goredis.NewPool(client))}
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		words := strings.Fields(lines.Text())
		answer, err := d.answer(words[0], words[1:])
		if err != nil {
			answer = "error " + strings.ReplaceAll(err.Error(), "\n", "; ")
		}
		fmt.Println(answer)
	}
}
