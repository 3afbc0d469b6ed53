import { stat } from "node:fs/promises";
import { type Clock, messageOf, type WorkerId } from "../../core/index.ts";
import type { Credentials, Trust } from "../trust.ts";
import { createAuthorizer } from "./authorize.ts";
import { type CertificateFiles, readCredentials } from "./read-credentials.ts";

/** A `Trust` whose credentials change only when `change` is called. */
export interface ChangeableTrust extends Trust {
  change(credentials: Credentials): void;
}

/** Creates a `Trust` with these credentials. Does not verify them. */
export function createTrust(credentials: Credentials, clock: Clock): ChangeableTrust {
  const listeners = new Set<() => void>();
  let current = { credentials, authorize: createAuthorizer(credentials) };
  return {
    get credentials() {
      return current.credentials;
    },
    authorize: (der, dialled) => current.authorize.authorize(der, dialled, clock.wallMs()),
    onChange(listener) {
      const entry = () => listener();
      listeners.add(entry);
      return { [Symbol.dispose]: () => void listeners.delete(entry) };
    },
    change(next) {
      current = { credentials: next, authorize: createAuthorizer(next) };
      for (const listener of [...listeners]) listener();
    },
  };
}

/** An event that concerns this host's certificate files. Each is reported once. */
export type TrustNews =
  /** The files were read and are in use: they have changed, or are valid again. */
  | { readonly kind: "loaded"; readonly notAfterMs: number }
  /** The files were refused. The previous credentials stay in use. */
  | { readonly kind: "refused"; readonly why: string }
  /** The files are in use, but have a problem that the operator should know. */
  | { readonly kind: "warning"; readonly text: string }
  /**
   * The time until the certificate expires has reached a new range. `soon`: less than 14 days.
   * `late`: expired, so peers refuse this host.
   */
  | { readonly kind: "expiry"; readonly state: ExpiryState; readonly notAfterMs: number };

export const EXPIRY_STATES = ["far", "soon", "late"] as const;
export type ExpiryState = (typeof EXPIRY_STATES)[number];

export type Reloaded =
  | { readonly ok: true; readonly isChanged: boolean }
  | { readonly ok: false; readonly why: string };

/** A `Trust` whose credentials come from files that are read again when they change. */
export interface WatchedTrust extends Trust, Disposable {
  readonly expiry: ExpiryState;
  /**
   * Reads the files again. If they are refused, the previous credentials stay in use. Never
   * rejects.
   */
  reload(): Promise<Reloaded>;
}

export interface WatchedTrustOptions {
  readonly files: CertificateFiles;
  readonly cluster: string;
  readonly worker: WorkerId;
  readonly clock: Clock;
  tell(news: TrustNews): void;
}

/** Milliseconds before a certificate's expiry at which the operator is warned. */
export const EXPIRY_WARNING_MS = 14 * 86_400_000;
/**
 * Interval in milliseconds at which files are checked for changes. A change is read when two
 * consecutive checks see the same files.
 */
const LOOK_MS = 5_000;

/**
 * Reads the credentials and starts to watch their files. Throws CONFIG_INVALID if the files are
 * invalid.
 */
export async function openTrust(options: WatchedTrustOptions): Promise<WatchedTrust> {
  const { files, cluster, worker, clock, tell } = options;
  const stamp = await stampOf(files);
  const name = { cluster, worker };
  const { credentials, warnings } = await readCredentials(files, name, clock.wallMs());
  for (const text of warnings) tell({ kind: "warning", text });
  const trust = createTrust(credentials, clock);
  let expiry: ExpiryState = "far";
  const checkExpiry = () => {
    const { notAfterMs } = trust.credentials;
    const state = expiryState(notAfterMs - clock.wallMs());
    if (state === expiry) return;
    expiry = state;
    tell({ kind: "expiry", state, notAfterMs });
  };
  let isRefused = false;
  const read = async (): Promise<Reloaded> => {
    try {
      const next = await readCredentials(files, name, clock.wallMs());
      const isChanged = !Bun.deepEquals(next.credentials, trust.credentials);
      if (!isChanged && !isRefused) return { ok: true, isChanged };
      isRefused = false;
      for (const text of next.warnings) tell({ kind: "warning", text });
      if (isChanged) trust.change(next.credentials);
      tell({ kind: "loaded", notAfterMs: next.credentials.notAfterMs });
      return { ok: true, isChanged };
    } catch (thrown) {
      const why = messageOf(thrown);
      isRefused = true;
      tell({ kind: "refused", why });
      return { ok: false, why };
    } finally {
      checkExpiry();
    }
  };
  let last: Promise<unknown> = Promise.resolve();
  /** Reads the files after the running read has ended, so that the latest contents are used. */
  const reload = () => {
    const result = last.then(read);
    last = result;
    return result;
  };
  checkExpiry();
  const watch = watchFiles(files, stamp, clock, () => void reload());
  const expiries = clock.every(LOOK_MS, checkExpiry);
  return {
    get credentials() {
      return trust.credentials;
    },
    get expiry() {
      return expiry;
    },
    authorize: (der, dialled) => trust.authorize(der, dialled),
    onChange: (listener) => trust.onChange(listener),
    reload,
    [Symbol.dispose]() {
      watch[Symbol.dispose]();
      expiries[Symbol.dispose]();
    },
  };
}

function expiryState(leftMs: number): ExpiryState {
  if (leftMs < 0) return "late";
  return leftMs < EXPIRY_WARNING_MS ? "soon" : "far";
}

/**
 * Calls `changed` after the files have changed, once two consecutive checks see the same files.
 * `read`: stamp of the files when they were last read.
 */
function watchFiles(
  files: CertificateFiles,
  read: string,
  clock: Clock,
  changed: () => void,
): Disposable {
  let [told, seen, isLooking] = [read, read, false];
  return clock.every(LOOK_MS, async () => {
    if (isLooking) return;
    isLooking = true;
    const now = await stampOf(files);
    isLooking = false;
    const isStill = now === seen;
    seen = now;
    if (!isStill || now === told) return;
    told = now;
    changed();
  });
}

/**
 * Returns a text that changes when one of the files is written, replaced or removed. Never rejects.
 */
async function stampOf({ certFile, keyFile, caFile }: CertificateFiles): Promise<string> {
  const stamps = [certFile, keyFile, caFile].map(async (path) => {
    try {
      const { ino, size, mtimeNs } = await stat(path, { bigint: true });
      return `${ino}.${size}.${mtimeNs}`;
    } catch {
      return "none";
    }
  });
  return (await Promise.all(stamps)).join(" ");
}
