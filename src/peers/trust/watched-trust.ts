import { stat } from "node:fs/promises";
import { type Clock, messageOf, type WorkerId } from "../../core/index.ts";
import type { Credentials, Trust } from "../trust.ts";
import { createAuthorizer } from "./authorize.ts";
import { type CertificateFiles, readCredentials } from "./read-credentials.ts";

/** Trust whose credentials change only by `change`. */
export interface ChangeableTrust extends Trust {
  change(credentials: Credentials): void;
}

/** Trusts `credentials` without checking them. */
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

/** Reported once for each change. */
export type TrustNews =
  /** The files' contents are in use: they are new, or valid again. */
  | { readonly kind: "loaded"; readonly notAfterMs: number }
  /** The files were refused; the previous credentials stay in use. */
  | { readonly kind: "refused"; readonly why: string }
  /** The files are in use, but the operator should know something. */
  | { readonly kind: "warning"; readonly text: string }
  /** `soon`: expires within 14 days. `late`: expired, so peers refuse this host. */
  | { readonly kind: "expiry"; readonly state: ExpiryState; readonly notAfterMs: number };

export const EXPIRY_STATES = ["far", "soon", "late"] as const;
export type ExpiryState = (typeof EXPIRY_STATES)[number];

export type Reloaded =
  | { readonly ok: true; readonly isChanged: boolean }
  | { readonly ok: false; readonly why: string };

/** Trust from files, reloaded when they change. */
export interface WatchedTrust extends Trust, Disposable {
  readonly expiry: ExpiryState;
  /** Reloads the files. If they are refused, the previous credentials stay in use. Never throws. */
  reload(): Promise<Reloaded>;
}

export interface WatchedTrustOptions {
  readonly files: CertificateFiles;
  readonly cluster: string;
  readonly worker: WorkerId;
  readonly clock: Clock;
  tell(news: TrustNews): void;
}

/** Time before expiry at which a warning is reported. */
export const EXPIRY_WARNING_MS = 14 * 86_400_000;
/** A change is read once two consecutive checks at this interval see the same files. */
const LOOK_MS = 5_000;

/** Throws CONFIG_INVALID if the files are invalid. */
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
  /** Serialized, so that the latest contents win. */
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

/** Calls `changed` once for each change, after the files have settled. */
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

/** Changes when a file is written, replaced or removed. Never throws. */
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
