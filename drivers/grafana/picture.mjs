// Draws docs/how-to/pictures/dashboard.png and dashboard-light.png: boots a Redis, a monitor and a Prometheus, makes
// processes wait, die and lose locks, and takes a picture of the page in Chromium. What it starts ends with it.

import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { connect, createServer as listen } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import sharp from 'sharp';
import { createServer as servePage } from 'vite';

const LEASEHOLD = process.env.LEASEHOLD ?? fileURLToPath(new URL('../../target/debug/leasehold', import.meta.url));
const PICTURES = fileURLToPath(new URL('../../docs/how-to/pictures/', import.meta.url));
const SECONDS = 110;
const WIDTH = 1400;
const SCRAPE_MS = 1000;

/** The processes that still run. */
const running = new Set();

function start(program, args, options = {}) {
  const child = spawn(program, args, { stdio: ['pipe', 'pipe', 'inherit'], ...options });
  const ended = new Promise((resolve) => {
    child.once('error', (error) => {
      console.error(`${program}: ${error.message}`);
      resolve();
    });
    child.once('exit', resolve);
  });
  const process = { child, ended, lines: createInterface({ input: child.stdout }) };
  running.add(process);
  void ended.then(() => running.delete(process));
  child.stdin.on('error', () => {});
  return process;
}

async function line(lines, pattern) {
  for await (const text of lines) {
    const found = pattern.exec(text);
    if (found) {
      // What comes later is not read, but must not fill the pipe.
      return found;
    }
  }
  throw new Error(`no line matches ${pattern}`);
}

async function until(what, check) {
  for (let tries = 0; tries < 300; tries++) {
    if (await check().catch(() => false)) {
      return;
    }
    await sleep(100);
  }
  throw new Error(`not within 30 s: ${what}`);
}

async function freePort() {
  const server = listen().listen(0, '127.0.0.1');
  await once(server, 'listening');
  const { port } = server.address();
  server.close();
  await once(server, 'close');
  return port;
}

async function redis(port, command) {
  const socket = connect(port, '127.0.0.1');
  socket.end(`${command}\r\n`);
  const parts = await socket.toArray();
  return Buffer.concat(parts).toString();
}

/** Starts what is drawn, and returns the address of the Prometheus. */
async function fleet(directory, store, redisPort) {
  start('redis-server', ['--port', redisPort, '--bind', '127.0.0.1', '--save', '', '--dir', directory]);
  await until('Redis answers', async () => (await redis(redisPort, 'PING')) === '+PONG\r\n');

  const monitor = start(LEASEHOLD, ['monitor', '--listen', '127.0.0.1:0', '--every', '1s', '--json', '--store', store]);
  const [, address] = await line(monitor.lines, /"address":"([^"]+)"/);
  monitor.child.stdout.resume();

  const config = join(directory, 'prometheus.yml');
  await writeFile(
    config,
    `scrape_configs:
  - job_name: leasehold
    scrape_interval: ${SCRAPE_MS}ms
    scrape_timeout: ${SCRAPE_MS}ms
    static_configs:
      - targets: ['${address}']
`
  );
  const listened = `127.0.0.1:${await freePort()}`;
  start('prometheus', [
    `--config.file=${config}`,
    `--storage.tsdb.path=${join(directory, 'data')}`,
    `--web.listen-address=${listened}`,
    '--log.level=warn',
  ]);
  await until('Prometheus answers', async () => (await fetch(`http://${listened}/-/ready`)).ok);
  return `http://${listened}`;
}

/** A process that holds the lock until `end`, once `held` has come. */
function hold(store, name, ...options) {
  const script = 'echo held; read line';
  const { child, ended, lines } = start(
    LEASEHOLD,
    ['run', name, ...options, '--quiet', '--store', store, '--', 'sh', '-c', script],
    { stdio: ['pipe', 'pipe', 'ignore'] }
  );
  return {
    held: once(lines, 'line'),
    end: () => {
      child.stdin.end();
      return ended;
    },
    // The command of a killed process ends as well, with its input.
    kill: () => {
      child.kill('SIGKILL');
      child.stdin.destroy();
    },
  };
}

/** A process that holds one lock, and then waits for another. */
async function nested(store, first, second) {
  const script = 'echo held; read line; exec "$LEASEHOLD" run "$1" -- sh -c "read line"';
  const { child, lines } = start(LEASEHOLD, ['run', first, '--', 'sh', '-c', script, 'sh', second], {
    env: { ...process.env, LEASEHOLD, LEASEHOLD_STORE: store },
    stdio: ['pipe', 'pipe', 'ignore'],
  });
  await once(lines, 'line');
  return () => child.stdin.write('go\n');
}

/** What happens in the picture. It is the same in each run, but for the order in which processes get a lock. */
async function load(store, redisPort) {
  const begin = Date.now();
  const at = (seconds) => sleep(Math.max(0, begin + seconds * 1000 - Date.now()));
  const over = () => Date.now() - begin > SECONDS * 1000;

  async function worker(number, name, seconds, ...options) {
    await at(2 * number);
    for (let turn = number; !over(); turn++) {
      const one = hold(store, name(turn), ...options);
      await Promise.race([one.held, at(SECONDS)]);
      await Promise.race([sleep(seconds(turn) * 1000), at(SECONDS)]);
      if (over()) {
        return;
      }
      await one.end();
    }
  }

  /** A holder that dies. */
  async function dies(name, from, to) {
    await at(from);
    const one = hold(store, name);
    await one.held;
    await at(to);
    one.kill();
  }

  /** A waiter that dies in the queue. */
  async function diesWaiting(name, from, to) {
    await at(from);
    const one = hold(store, name);
    await at(to);
    one.kill();
  }

  async function nightly() {
    await hold(store, 'nightly-report').held;
    await at(25);
    hold(store, 'nightly-report');
    await at(50);
    hold(store, 'nightly-report');
  }

  async function foreign() {
    await at(30);
    await redis(redisPort, 'SET legacy-export token-of-another-library');
    const waiter = hold(store, 'legacy-export');
    await at(70);
    await redis(redisPort, 'DEL legacy-export');
    await waiter.held;
    await waiter.end();
  }

  async function freed() {
    await at(40);
    const one = hold(store, 'invoices/2026');
    await one.held;
    await at(55);
    await start(LEASEHOLD, ['free', 'invoices/2026', '--yes', '--store', store]).ended;
    await one.end();
  }

  async function deadlocked() {
    await at(80);
    const [one, other] = await Promise.all([nested(store, 'stock', 'payments'), nested(store, 'payments', 'stock')]);
    one();
    other();
  }

  await Promise.all([
    ...[0, 1, 2, 3, 4].map((number) => worker(number, (turn) => `orders/${turn % 2}`, (turn) => 2 + ((turn * 3) % 5))),
    ...[0, 1, 2, 3].map((number) => worker(number, () => 'geocoder', (turn) => 3 + (turn % 4), '--permits', '2')),
    nightly(),
    foreign(),
    freed(),
    deadlocked(),
    dies('imports/1', 5, 10),
    dies('imports/2', 20, 30),
    dies('imports/3', 35, 60),
    dies('uploads/1', 15, 20),
    dies('uploads/2', 50, 70),
    diesWaiting('nightly-report', 30, 35),
    diesWaiting('nightly-report', 55, 75),
    at(SECONDS),
  ]);
  return begin;
}

/** A session of Chromium, over WebDriver. */
async function browser() {
  const driver = start('chromedriver', ['--port=0']);
  const [, port] = await line(driver.lines, /successfully on port (\d+)/);
  driver.child.stdout.resume();
  async function ask(method, path, body) {
    const response = await fetch(`http://127.0.0.1:${port}/session${path}`, { method, body: JSON.stringify(body) });
    const { value } = await response.json();
    if (!response.ok) {
      throw new Error(`${path}: ${value.message}`);
    }
    return value;
  }
  const args = ['--headless=new', '--hide-scrollbars', '--force-device-scale-factor=1'];
  if (process.getuid?.() === 0) {
    args.push('--no-sandbox');
  }
  const { sessionId } = await ask('POST', '', {
    capabilities: {
      alwaysMatch: { browserName: 'chrome', 'goog:chromeOptions': { args }, 'goog:loggingPrefs': { browser: 'ALL' } },
    },
  });
  const session = (method, path, body) => ask(method, `/${sessionId}${path}`, body);
  return {
    open: (url) => session('POST', '/url', { url }),
    run: (script) => session('POST', '/execute/sync', { script, args: [] }),
    cdp: (cmd, params) => session('POST', '/goog/cdp/execute', { cmd, params }),
    log: () => session('POST', '/se/log', { type: 'browser' }),
    end: () => session('DELETE', ''),
  };
}

async function take(chromium, url, file) {
  const resize = (height) =>
    chromium.cdp('Emulation.setDeviceMetricsOverride', { width: WIDTH, height, deviceScaleFactor: 1, mobile: false });
  await resize(1000);
  await chromium.open(url);
  const drawn = () => chromium.run('return document.body.dataset.drawn');
  try {
    await until('the page is drawn', async () => (await drawn()) !== null);
  } catch (error) {
    console.error(await chromium.log());
    throw error;
  }
  // What is not in view is not drawn.
  const height = await chromium.run('return document.getElementById("page").scrollHeight');
  await resize(height);
  await chromium.run('return document.fonts.ready.then(() => true)');
  // The charts follow in the next frames, and the icons arrive.
  await sleep(2000);
  const { data } = await chromium.cdp('Page.captureScreenshot', { format: 'png' });
  const picture = sharp(Buffer.from(data, 'base64'));
  // Without dithering, thin lines keep their colours.
  const { size } = await picture.png({ palette: true, colours: 256, dither: 0, effort: 10 }).toFile(file);
  console.log(`${file}: ${WIDTH} x ${height}, ${size} bytes`);
  const panels = JSON.parse(await drawn());
  for (const { panel, type, series, error } of panels) {
    console.log(`  ${panel} (${type}): ${error ?? `${series} series`}`);
  }
  for (const { level, message } of await chromium.log()) {
    if (level === 'SEVERE') {
      console.log(`  ${message}`);
    }
  }
  if (panels.some(({ error }) => error)) {
    throw new Error('a query failed');
  }
}

async function main(directory) {
  const redisPort = await freePort();
  const store = `redis://127.0.0.1:${redisPort}/`;
  process.env.PROMETHEUS = await fleet(directory, store, redisPort);
  const page = await servePage({ configFile: fileURLToPath(new URL('vite.config.ts', import.meta.url)) });
  let chromium;
  try {
    await page.listen(0);
    chromium = await browser();
    const [url] = page.resolvedUrls.local;
    // The first request makes Vite bundle the components.
    await chromium.open(url);
    const from = await load(store, redisPort);
    const query = `from=${from}&to=${Date.now()}&scrape=${SCRAPE_MS}`;
    await take(chromium, `${url}?theme=dark&${query}`, join(PICTURES, 'dashboard.png'));
    await take(chromium, `${url}?theme=light&${query}`, join(PICTURES, 'dashboard-light.png'));
  } finally {
    await chromium?.end();
    await page.close();
  }
}

const directory = await mkdtemp(join(tmpdir(), 'leasehold-dashboard-'));
try {
  await main(directory);
} finally {
  // The server is the first that was started, so locks can be released until the end.
  for (const { child, ended } of [...running].reverse()) {
    child.stdin.destroy();
    child.kill('SIGTERM');
    await ended;
  }
  await rm(directory, { recursive: true });
}
