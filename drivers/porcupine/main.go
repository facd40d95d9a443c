// Judges the Mutexes of a history with Porcupine: `driver HISTORY.jsonl [PICTURE.html]`.
//
// The format of histories is in docs/reference/history.md. A Mutex with its guarded counter is one object with these operations, as
// crates/history/tests/judges/operations.rs describes them: acquire, end, update, overwrite. Prints a line for each Mutex. Exits with 0 if
// all are linearizable, 1 if one is not, 2 if the history cannot be read, 3 if the time was not enough.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"html"
	"os"
	"sort"
	"time"

	"github.com/anishathalye/porcupine"
)

// How long one history may take.
const limit = 10 * time.Minute

// What an event may have; each has a part of it.
type event struct {
	At      int64  `json:"at_us"`
	Process int    `json:"process"`
	Event   string `json:"event"`
	Format  int    `json:"format"`
	Locks   []struct {
		Name string `json:"name"`
		Kind string `json:"kind"`
	} `json:"locks"`
	Call   uint64          `json:"call"`
	Lock   string          `json:"lock"`
	Since  int64           `json:"since_us"`
	Valid  bool            `json:"valid"`
	Read   uint64          `json:"read"`
	Fenced bool            `json:"fenced"`
	Answer json.RawMessage `json:"answer"`
	Fault  uint64          `json:"fault"`
	Kind   string          `json:"kind"`
	Worker *int            `json:"worker"`
	Detail string          `json:"detail"`
}

// The answer to an acquire or a release.
type answer struct {
	Answer string `json:"answer"`
	Fence  uint64 `json:"fence"`
}

type hold struct {
	call     uint64
	lock     string
	process  int
	asked    int64
	granted  int64
	fence    uint64
	valid    int64
	release  int64
	released int64
}

type write struct {
	at     int64
	call   uint64
	lock   string
	read   uint64
	fenced bool
}

type kind int

const (
	acquire kind = iota
	end
	update
	overwrite
	refusedUpdate
)

// What a process asked of a Mutex and its counter.
type input struct {
	lock   string
	kind   kind
	call   uint64
	number uint64
}

// A Mutex and its counter.
type state struct {
	holder      uint64
	fence       uint64
	value       uint64
	overwritten bool
}

func step(from state, in input) (bool, state) {
	switch in.kind {
	case acquire:
		return from.holder == 0 && in.number > from.fence, state{in.call, in.number, from.value, from.overwritten}
	case end:
		return from.holder == in.call, state{0, from.fence, from.value, from.overwritten}
	case update:
		isPossible := from.holder == in.call && (in.number == from.value || from.overwritten)
		return isPossible, state{from.holder, from.fence, in.number + 1, false}
	case overwrite:
		return true, state{from.holder, from.fence, in.number + 1, true}
	default:
		return false, from
	}
}

var model = porcupine.Model{
	Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
		byLock := map[string][]porcupine.Operation{}
		names := []string{}
		for _, operation := range history {
			name := operation.Input.(input).lock
			if _, known := byLock[name]; !known {
				names = append(names, name)
			}
			byLock[name] = append(byLock[name], operation)
		}
		partitions := [][]porcupine.Operation{}
		for _, name := range names {
			partitions = append(partitions, byLock[name])
		}
		return partitions
	},
	Init: func() interface{} { return state{} },
	Step: func(from, in, _ interface{}) (bool, interface{}) {
		return step(from.(state), in.(input))
	},
	DescribeOperation: func(in, _ interface{}) string {
		it := in.(input)
		switch it.kind {
		case acquire:
			return fmt.Sprintf("acquire, token %d", it.number)
		case end:
			return "end"
		case update:
			return fmt.Sprintf("%d + 1", it.number)
		case overwrite:
			return fmt.Sprintf("late: %d + 1", it.number)
		default:
			return fmt.Sprintf("refused: %d + 1", it.number)
		}
	},
	DescribeState: func(it interface{}) string {
		at := it.(state)
		holder := "free"
		if at.holder != 0 {
			holder = fmt.Sprintf("call %d", at.holder)
		}
		return fmt.Sprintf("%s, token %d, value %d", holder, at.fence, at.value)
	},
}

// What is to be judged.
type history struct {
	names  []string
	holds  map[uint64]*hold
	writes []write
	faults []porcupine.Annotation
	last   int64
}

func read(path string) (*history, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	events := []event{}
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 64<<20)
	for number := 1; lines.Scan(); number++ {
		if len(lines.Bytes()) == 0 {
			continue
		}
		var it event
		if err := json.Unmarshal(lines.Bytes(), &it); err != nil {
			return nil, fmt.Errorf("line %d: %w", number, err)
		}
		events = append(events, it)
	}
	if err := lines.Err(); err != nil {
		return nil, err
	}
	if len(events) == 0 || events[0].Event != "began" || events[0].Format != 1 {
		return nil, fmt.Errorf("line 1: no history of format 1")
	}
	sort.SliceStable(events, func(one, other int) bool { return events[one].At < events[other].At })
	return collect(events)
}

func collect(events []event) (*history, error) {
	mutexes := map[string]bool{}
	all := &history{holds: map[uint64]*hold{}}
	faults := map[uint64]int{}
	for _, it := range events {
		all.last = it.At
		at := all.holds[it.Call]
		var said answer
		if len(it.Answer) > 0 {
			if err := json.Unmarshal(it.Answer, &said); err != nil {
				return nil, err
			}
		}
		switch {
		case it.Event == "began":
			for _, lock := range it.Locks {
				if lock.Kind == "mutex" {
					mutexes[lock.Name] = true
					all.names = append(all.names, lock.Name)
				}
			}
		case it.Event == "asked" && mutexes[it.Lock]:
			all.holds[it.Call] = &hold{call: it.Call, lock: it.Lock, process: it.Process, asked: it.At}
		case it.Event == "wrote" && mutexes[it.Lock]:
			all.writes = append(all.writes, write{it.At, it.Call, it.Lock, it.Read, it.Fenced})
		case it.Event == "answered" && at != nil && said.Answer == "granted" && at.granted == 0:
			at.granted, at.fence = it.At, said.Fence
		case it.Event == "checked" && at != nil && it.Valid:
			at.valid = it.Since
		case it.Event == "release_asked" && at != nil && at.release == 0:
			at.release = it.At
		case it.Event == "released" && at != nil && said.Answer == "released" && at.released == 0:
			at.released = it.At
		case it.Event == "fault_began":
			faults[it.Fault] = len(all.faults)
			// The picture shows details as markup.
			kind, detail := html.EscapeString(it.Kind), html.EscapeString(it.Detail)
			fault := porcupine.Annotation{Tag: "faults", Start: it.At, Description: kind, Details: detail}
			if it.Worker != nil {
				fault.Description = fmt.Sprintf("%s (process %d)", kind, *it.Worker)
			}
			all.faults = append(all.faults, fault)
		case it.Event == "fault_ended":
			all.faults[faults[it.Fault]].End = it.At
		}
	}
	for index := range all.faults {
		if all.faults[index].End == 0 {
			all.faults[index].End = all.last
		}
	}
	return all, nil
}

// The operations of all Mutexes.
func (all *history) operations() []porcupine.Operation {
	operations := []porcupine.Operation{}
	add := func(process int, in input, call, returned int64) {
		operations = append(operations, porcupine.Operation{ClientId: process, Input: in, Call: call, Return: returned})
	}
	calls := []uint64{}
	for call, it := range all.holds {
		if it.granted == 0 || it.valid <= it.granted {
			delete(all.holds, call)
			continue
		}
		calls = append(calls, call)
	}
	sort.Slice(calls, func(one, other int) bool { return calls[one] < calls[other] })
	for _, call := range calls {
		it := all.holds[call]
		ends, ended := it.valid, it.released
		if it.release > 0 && it.release < ends {
			ends = it.release
		}
		if ended == 0 {
			// Some time later, or never.
			ended = all.last + 1
		}
		add(it.process, input{it.lock, acquire, call, it.fence}, it.asked, it.granted)
		add(it.process, input{it.lock, end, call, 0}, ends, ended)
	}
	for _, it := range all.writes {
		holder := all.holds[it.call]
		isValid := holder != nil && holder.granted <= it.at && it.at <= holder.valid
		in := input{it.lock, overwrite, it.call, it.read}
		switch {
		case isValid && it.fenced:
			in.kind = update
		case isValid:
			in.kind = refusedUpdate
		case !it.fenced:
			continue
		}
		process := 0
		if holder != nil {
			process = holder.process
		}
		add(process, in, it.at, it.at)
	}
	return operations
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(2)
}

func main() {
	if len(os.Args) < 2 {
		fail(fmt.Errorf("usage: driver HISTORY.jsonl [PICTURE.html]"))
	}
	all, err := read(os.Args[1])
	if err != nil {
		fail(fmt.Errorf("%s: %w", os.Args[1], err))
	}
	operations := all.operations()
	if len(os.Args) > 2 {
		_, info := porcupine.CheckOperationsVerbose(model, operations, limit)
		info.AddAnnotations(all.faults)
		if err := porcupine.VisualizePath(model, info, os.Args[2]); err != nil {
			fail(err)
		}
	}
	status := 0
	byLock := map[string][]porcupine.Operation{}
	for _, operation := range operations {
		name := operation.Input.(input).lock
		byLock[name] = append(byLock[name], operation)
	}
	for _, name := range all.names {
		result := porcupine.CheckOperationsTimeout(model, byLock[name], limit)
		word := "linearizable"
		switch result {
		case porcupine.Illegal:
			word, status = "NOT LINEARIZABLE", 1
		case porcupine.Unknown:
			word = "unknown: the time was not enough"
			if status == 0 {
				status = 3
			}
		}
		fmt.Printf("%q: %d operations, %s\n", name, len(byLock[name]), word)
	}
	if len(all.names) == 0 {
		fmt.Println("no Mutex")
	}
	os.Exit(status)
}
