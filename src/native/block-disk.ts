import type { Region } from "./region.ts";
import type { StatusName } from "./status.ts";

export const HEADER_BYTES = 4096;

/** How an operation on the disk ended. `errno` is 0 where the kernel gave none. */
export type DiskOutcome<T> =
  | ({ readonly ok: true } & T)
  | { readonly ok: false; readonly status: StatusName; readonly errno: number };

/** A 4 KiB header in native memory. Whoever has claimed it fills or reads `bytes`. */
export interface HeaderSlot extends Disposable {
  /** Valid until disposed; never disposed while an operation that names it is in flight. */
  readonly bytes: Uint8Array;
}

/** One block on its way between a region and a file. */
export interface BlockTransfer {
  /** Relative to the disk's folder, ASCII, at most 63 characters. */
  readonly path: string;
  readonly header: HeaderSlot;
  readonly region: Region;
  /** A multiple of 4096. */
  readonly offset: number;
  /**
   * Length of the payload, at least 1. The transfer has the region to the end of the payload's last
   * page: a store zeroes what lies behind the payload there, a load reads the file's zeros into it.
   */
  readonly bytes: number;
  /**
   * For a store: a file that nobody needs any more, to be overwritten and renamed instead of making
   * a new one. Its name must be that of a leftover. One that is not there, not exactly as long as
   * header and payload in whole pages, or has a second name is `missing`, and nothing is written.
   */
  readonly spare?: string;
}

export interface DiskEntry {
  /** Name within the shard folder. */
  readonly name: string;
  readonly bytes: number;
  /** As the file system counts them: st_blocks * 512. */
  readonly allocatedBytes: number;
}

/**
 * Whole-block operations on one folder, carried out by native threads or io_uring. Promises:
 *
 * - No call blocks the event loop, whatever the disk does, and none throws for what the disk does.
 * - The span and the header of a transfer are the kernel's until its promise settles, and it
 *   settles only when the kernel is done with them: there is no cancellation.
 * - A file appears under its name only complete; a name that is taken is `exists`, and the file
 *   that has it is left alone. A failed `store` leaves nothing behind but the spare file that it
 *   was given, whatever that contains now: it is the caller's to remove.
 * - At most `depth` operations are in flight; more are answered `full`, at once.
 */
export interface BlockDisk extends AsyncDisposable {
  /** What moves the bytes, and why it is not io_uring where it is not. */
  readonly method: "io_uring" | "threads";
  readonly methodReason: string;
  /** Whether the files are opened with O_DIRECT. */
  readonly direct: boolean;
  /** Whether the arena is registered with the ring; `registering`: that is not known yet. */
  readonly registered: boolean;
  readonly registering: boolean;
  readonly depth: number;
  /** Operations in flight. */
  readonly inFlight: number;

  /** Null where all `depth` are claimed. */
  claimHeader(): HeaderSlot | null;

  /** Writes header and payload to a new file, or over a spare one. */
  store(transfer: BlockTransfer): Promise<DiskOutcome<{ readonly allocatedBytes: number }>>;

  /**
   * Reads header and payload; `fileBytes` is the size of the file, `checksum` XXH3-64 of the
   * payload as it lies in the region now. A file that is shorter than header and payload is
   * `short`. What the bytes mean is the caller's to check.
   */
  load(
    transfer: BlockTransfer,
  ): Promise<DiskOutcome<{ readonly checksum: bigint; readonly fileBytes: number }>>;

  /** Reads the header alone. */
  peek(path: string, header: HeaderSlot): Promise<DiskOutcome<{ readonly fileBytes: number }>>;

  /** Removes a file; `missing` where there is none. */
  remove(path: string): Promise<DiskOutcome<object>>;

  /** Moves a file within the folder, out of the way: an existing target is `exists`. */
  rename(from: string, to: string): Promise<DiskOutcome<object>>;

  /**
   * What lies in a folder below the disk's own ("" = itself), folders too, in no order; not
   * recursive. What comes and goes meanwhile may be in it or not.
   */
  list(path: string): Promise<DiskOutcome<{ readonly entries: readonly DiskEntry[] }>>;

  /** Everything stored and removed so far survives a loss of power (syncfs). */
  sync(): Promise<DiskOutcome<object>>;

  /** Free and total bytes of the file system, as an unprivileged process may use them. */
  space(): Promise<DiskOutcome<{ readonly freeBytes: number; readonly totalBytes: number }>>;

  /**
   * Waits for what is in flight, at most `ms`; false where the kernel still holds something. Then
   * its memory is never freed, and its promises never settle. Operations from now on are `closed`.
   */
  close(ms: number): Promise<boolean>;
}
