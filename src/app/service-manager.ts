import type { Clock } from "../core/index.ts";
import type { Native } from "../native/index.ts";

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

export interface ServiceEnvironment {
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
