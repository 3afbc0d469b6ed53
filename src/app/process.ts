import { CONTROL_STOP_MS } from "../control/index.ts";
import type { Clock } from "../core/index.ts";
import type { Native } from "../native/index.ts";

/** Stop reason if the process stops because its standard input was closed. */
export const END_OF_INPUT = "end of input";

/**
 * Waits for stop signals. `first` resolves with the name of the first signal. A second signal
 * aborts `second`, which means: stop without waiting. With `alsoInputEnd`, closing standard input
 * counts as a signal.
 */
export function stopSignals(alsoInputEnd: boolean): {
  readonly first: Promise<string>;
  readonly second: AbortSignal;
} {
  const forceStop = new AbortController();
  let asked: string | null = null;
  const first = new Promise<string>((resolve) => {
    const ask = (name: string) => {
      if (asked !== null && name !== END_OF_INPUT) forceStop.abort();
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
  return { first, second: forceStop.signal };
}

/**
 * Handles SIGHUP as a reload. Call at process start, because SIGHUP otherwise ends the process.
 * Reloads run one at a time. All signals before `begin` cause one reload.
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
 * Notifications to systemd (sd_notify(3)). All calls are no-ops without a service manager. The
 * event loop sends the watchdog signal, so systemd detects a blocked loop.
 */
export interface ServiceManager extends Disposable {
  ready(status: string): void;
  /** Reports that startup continues. Extends the start timeout by `ms`, 30 s by default. */
  starting(status: string, ms?: number): void;
  status(status: string): void;
  reloading(): void;
  stopping(): void;
  /**
   * True if the service manager can store descriptors for the next process
   * (FileDescriptorStoreMax=).
   */
  readonly keeps: boolean;
  /** Stores a descriptor in the service manager under a name. */
  keep(name: string, fd: number): void;
  /** Removes the descriptors stored under this name from the service manager. */
  forget(name: string): void;
}

interface ServiceEnvironment {
  readonly NOTIFY_SOCKET?: string | undefined;
  readonly WATCHDOG_USEC?: string | undefined;
  readonly WATCHDOG_PID?: string | undefined;
  /** Maximum descriptors that the service manager stores. Set by systemd 254 and later. */
  readonly FDSTORE?: string | undefined;
}

/** Returns the environment variables that the service manager set for this process. */
export function serviceEnvironment(): ServiceEnvironment {
  const { NOTIFY_SOCKET, WATCHDOG_USEC, WATCHDOG_PID, FDSTORE } = process.env;
  return { NOTIFY_SOCKET, WATCHDOG_USEC, WATCHDOG_PID, FDSTORE };
}

const EXTEND_MS = 30_000;
/** Number of descriptors that a RAM handover stores: the arena and its record. */
const KEPT = 2;

export function createServiceManager(
  native: Pick<Native, "notify" | "monotonicUs">,
  clock: Clock,
  environment: ServiceEnvironment,
): ServiceManager {
  const { NOTIFY_SOCKET: socket, WATCHDOG_USEC, WATCHDOG_PID } = environment;
  const say = (text: string) => {
    // Ignore a failed notification: the process can run without it.
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

/** Maximum wait for clients to disconnect after SIGTERM. */
export const DRAIN_MS = 10_000;
/** Maximum time at stop to write blocks that exist only in RAM to SSD. */
export const SETTLE_MS = 20_000;
/** Maximum time at stop to finish purges already requested. */
export const PURGES_MS = 5_000;
/**
 * Time at stop after which a warning is logged that peers still use RAM. Normally it takes seconds.
 */
export const PEERS_STOP_MS = 10_000;
/** Time at stop after which a warning is logged that devices still use RAM. */
export const DEVICES_STOP_MS = 5_000;
/** Maximum time at stop for the index to write pending changes. */
export const INDEX_CLOSE_MS = 5_000;
/** Maximum time at stop for the scrub and the disk to release memory. */
const TIER_CLOSE_MS = 10_000;

/**
 * Maximum time from SIGTERM to the end of the process. The service manager's stop timeout must be
 * longer.
 */
export const STOP_MS_MAX =
  DRAIN_MS +
  PEERS_STOP_MS +
  CONTROL_STOP_MS +
  SETTLE_MS +
  PURGES_MS +
  DEVICES_STOP_MS +
  TIER_CLOSE_MS +
  INDEX_CLOSE_MS;
