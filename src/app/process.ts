import { CONTROL_STOP_MS } from "../control/index.ts";
import type { Clock } from "../core/index.ts";
import type { Native } from "../native/index.ts";

/** What a process says that ends because its standard input did. */
export const END_OF_INPUT = "end of input";

/** The name of the first signal that asks for the end; whoever asks twice does not want to wait. */
export function stopSignals(alsoInputEnd: boolean): {
  readonly first: Promise<string>;
  readonly second: AbortSignal;
} {
  const hurry = new AbortController();
  let asked: string | null = null;
  const first = new Promise<string>((resolve) => {
    const ask = (name: string) => {
      if (asked !== null && name !== END_OF_INPUT) hurry.abort();
      asked = name;
      resolve(name);
    };
    process.on("SIGTERM", () => ask("SIGTERM"));
    process.on("SIGINT", () => ask("SIGINT"));
    if (!alsoInputEnd) return;
    process.stdin.on("end", () => ask(END_OF_INPUT));
    process.stdin.on("close", () => ask(END_OF_INPUT));
    process.stdin.resume();
  });
  return { first, second: hurry.signal };
}

/**
 * SIGHUP from the start on: unhandled, it would end the process. One reload after the other,
 * however fast the signals come; those before `begin` are one reload then.
 */
export function reloadSignals() {
  let run: () => Promise<void> = async () => undefined;
  let asked = false;
  let last = Promise.resolve();
  const queue = () => {
    last = last.then(() => run());
  };
  process.on("SIGHUP", () => {
    asked = true;
    queue();
  });
  return {
    begin(reload: () => Promise<void>): void {
      run = reload;
      if (asked) queue();
    },
  };
}

/**
 * systemd's view of the process (sd_notify(3)). Every call does nothing where no service manager
 * listens. The watchdog is fed from the event loop, so that a loop that stands still is noticed.
 */
export interface ServiceManager extends Disposable {
  ready(status: string): void;
  /**
   * The start goes on, and may take so much longer than the manager was told at first: half a
   * minute unless said.
   */
  starting(status: string, ms?: number): void;
  status(status: string): void;
  reloading(): void;
  stopping(): void;
  /** Whether the manager keeps descriptors for the next process (FileDescriptorStoreMax=). */
  readonly keeps: boolean;
  /** Leaves a descriptor with the manager, under a name. */
  keep(name: string, fd: number): void;
  /** The manager drops what it keeps under this name. */
  forget(name: string): void;
}

interface ServiceEnvironment {
  readonly NOTIFY_SOCKET?: string | undefined;
  readonly WATCHDOG_USEC?: string | undefined;
  readonly WATCHDOG_PID?: string | undefined;
  /** How many descriptors the manager keeps; set by systemd 254 and later. */
  readonly FDSTORE?: string | undefined;
}

/** Of this process. */
export function serviceEnvironment(): ServiceEnvironment {
  const { NOTIFY_SOCKET, WATCHDOG_USEC, WATCHDOG_PID, FDSTORE } = process.env;
  return { NOTIFY_SOCKET, WATCHDOG_USEC, WATCHDOG_PID, FDSTORE };
}

const EXTEND_MS = 30_000;
/** The arena and its record. */
const KEPT = 2;

export function createServiceManager(
  native: Pick<Native, "notify" | "monotonicUs">,
  clock: Clock,
  environment: ServiceEnvironment,
): ServiceManager {
  const { NOTIFY_SOCKET: socket, WATCHDOG_USEC, WATCHDOG_PID } = environment;
  const say = (text: string) => {
    // A service manager that does not take it is its own trouble, not a reason to stop.
    if (socket) native.notify(socket, text);
  };
  const watchdogMs = Number(WATCHDOG_USEC ?? 0) / 1_000;
  const forUs = WATCHDOG_PID === undefined || Number(WATCHDOG_PID) === process.pid;
  const watchdog =
    socket && watchdogMs > 0 && forUs
      ? clock.every(watchdogMs / 2, () => say("WATCHDOG=1"))
      : undefined;
  return {
    starting: (status, ms = EXTEND_MS) =>
      say(`EXTEND_TIMEOUT_USEC=${ms * 1_000}\nSTATUS=${status}`),
    ready: (status) => say(`READY=1\nSTATUS=${status}`),
    status: (status) => say(`STATUS=${status}`),
    reloading: () => say(`RELOADING=1\nMONOTONIC_USEC=${native.monotonicUs()}`),
    keeps: Boolean(socket) && Number(environment.FDSTORE ?? 0) >= KEPT,
    keep: (name, fd) => {
      if (socket) native.notify(socket, `FDSTORE=1\nFDPOLL=0\nFDNAME=${name}`, [fd]);
    },
    forget: (name) => say(`FDSTOREREMOVE=1\nFDNAME=${name}`),
    stopping: () => say("STOPPING=1\nSTATUS=draining"),
    [Symbol.dispose]: () => watchdog?.[Symbol.dispose](),
  };
}

/** SIGTERM to the last connection cut. */
export const DRAIN_MS = 10_000;
/** How long the agent then writes to SSD what RAM alone holds. */
export const SETTLE_MS = 20_000;
/** How long purges that were asked for before the end may take. */
export const PURGES_MS = 5_000;
/** What pulls and loans are given to let go of their memory; seconds at most as a rule. */
export const PEERS_STOP_MS = 10_000;
/** What copies between GPUs and RAM are given before it is said that they take long. */
export const DEVICES_STOP_MS = 5_000;
/** How long the index may take to write what it has. */
export const INDEX_CLOSE_MS = 5_000;
/** What scrub and disk are given to let go of their memory. */
const TIER_CLOSE_MS = 10_000;

/** SIGTERM to the end of the process, at the most: the service manager must allow more. */
export const STOP_MS_MAX =
  DRAIN_MS +
  PEERS_STOP_MS +
  CONTROL_STOP_MS +
  SETTLE_MS +
  PURGES_MS +
  DEVICES_STOP_MS +
  TIER_CLOSE_MS +
  INDEX_CLOSE_MS;
