import { assert, HearthError } from "../core/index.ts";
import { type FunctionName, type NativeArgument, openLibrary, type Symbols } from "./library.ts";
import {
  type NativeBuffer,
  NativeError,
  nativeBuffer,
  readStruct,
  type StatusName,
  type StructName,
  type StructValue,
  statusName,
  writeStruct,
} from "./memory.ts";

export type { StatusName } from "./memory.ts";

/**
 * The process at the other end of a Unix socket, as the kernel recorded it when the process
 * connected.
 */
export interface SocketPeer {
  readonly pid: number;
  readonly uid: number;
  readonly gid: number;
  /** Supplementary group ids of the process. */
  readonly groups: readonly number[];
  /**
   * Descriptor of the process (pidfd), to be passed to `Queue.watch`. Null if the kernel does not
   * support it.
   */
  readonly pidFd: number | null;
}

export interface Build {
  readonly abiHash: string;
  readonly optimizeMode: "Debug" | "ReleaseSafe" | "ReleaseFast" | "ReleaseSmall";
  readonly hasAes: boolean;
}

const OPTIMIZE_MODES = ["Debug", "ReleaseSafe", "ReleaseFast", "ReleaseSmall"] as const;
/** Maximum number of groups of a Linux process (NGROUPS_MAX). */
const GROUPS_MAX = 65_536;
const EMPTY = new Uint8Array(new ArrayBuffer(8));

/**
 * Typed access to the functions of the native library. Obtained from `loadNative`, once per thread.
 * Functions throw NativeError if the library returns an error that the function's result type does
 * not include.
 */
export class Native {
  readonly symbols: Symbols;
  readonly #request: NativeBuffer = nativeBuffer(256);
  readonly #answer: NativeBuffer = nativeBuffer(256);
  readonly #answerView: DataView;

  constructor(symbols: Symbols) {
    this.symbols = symbols;
    this.#answerView = new DataView(this.#answer.bytes.buffer);
  }

  /**
   * Returns `code`, or throws NativeError if it is negative. `call`: the function that returned it,
   * for the message.
   */
  check(call: string, code: number): number {
    if (code >= 0) return code;
    throw new NativeError(call, code, this.symbols.hearth_last_errno());
  }

  /**
   * Calls a native function and returns its result. Throws NativeError if the result is negative.
   */
  call(name: FunctionName, ...args: NativeArgument[]): number {
    return this.check(name, this.symbols[name](...args));
  }

  /** Calls a native function that reads one struct and fills another. Returns the second one. */
  exchange<In extends StructName, Out extends StructName>(
    name: FunctionName,
    [inName, value]: readonly [In, StructValue<In>],
    outName: Out,
  ): StructValue<Out> {
    writeStruct(inName, value, this.#request.bytes);
    this.call(name, this.#request.bytes, this.#answer.bytes);
    return readStruct(outName, this.#answer.bytes);
  }

  regionInfo(handle: number): StructValue<"RegionInfo"> {
    const out = this.#answer.bytes;
    this.call("hearth_region_info", handle, out);
    return readStruct("RegionInfo", out);
  }

  build(): Build {
    this.call("hearth_abi", this.#answer.bytes);
    const info = readStruct("AbiInfo", this.#answer.bytes);
    return {
      abiHash: info.abi_hash.toHex(),
      optimizeMode: OPTIMIZE_MODES[info.optimize_mode],
      hasAes: info.has_aes === 1,
    };
  }

  /** Returns the BLAKE3-256 hash of `data`: 32 bytes. */
  blake3(data: Uint8Array): Uint8Array {
    const out = this.#answer.bytes;
    this.call("hearth_blake3", passable(data), data.length, out);
    return out.slice(0, 32);
  }

  /** Returns the BLAKE3-256 hash of `data` under a 32-byte key: 32 bytes. */
  blake3Keyed(key: Uint8Array, data: Uint8Array): Uint8Array {
    assert(key.length === 32, "a BLAKE3 key has 32 bytes");
    const out = this.#answer.bytes;
    this.call("hearth_blake3_keyed", key, passable(data), data.length, out);
    return out.slice(0, 32);
  }

  /**
   * Returns 32 bytes derived from `material` with BLAKE3's key derivation mode. `context`
   * identifies the purpose and is a constant in the source code.
   */
  blake3DeriveKey(context: string, material: Uint8Array): Uint8Array {
    const name = new TextEncoder().encode(context);
    const out = this.#answer.bytes;
    this.call(
      "hearth_blake3_derive_key",
      passable(name),
      name.length,
      passable(material),
      material.length,
      out,
    );
    return out.slice(0, 32);
  }

  /**
   * Writes the digest of every full block of a prompt to `out`, 32 bytes each. Returns the number
   * of digests: floor(tokens / blockTokens).
   */
  prefixDigests(
    key: Uint8Array,
    tokens: Uint32Array,
    blockTokens: number,
    out: Uint8Array,
  ): number {
    const count = Math.floor(tokens.length / blockTokens);
    assert(key.length === 32 && out.length >= count * 32, "room for every digest");
    if (count === 0) return 0;
    const request = this.#request.bytes;
    const staged = this.#stage(tokens, count * 32);
    writeStruct(
      "DigestRequest",
      {
        key,
        tokens: BigInt(staged.tokensAt),
        out: BigInt(staged.outAt),
        token_count: tokens.length,
        block_tokens: blockTokens,
      },
      request,
    );
    this.check("hearth_prefix_digests", this.symbols.hearth_prefix_digests(request));
    out.set(staged.out.subarray(0, count * 32));
    return count;
  }

  #staging: NativeBuffer = nativeBuffer(4096);

  /**
   * Copies tokens to memory with a stable address, followed by space for `outBytes` bytes of
   * results.
   */
  #stage(tokens: Uint32Array, outBytes: number) {
    const needed = tokens.byteLength + outBytes;
    if (this.#staging.bytes.length < needed) {
      this.#staging = nativeBuffer(2 ** Math.ceil(Math.log2(needed)));
    }
    const { bytes, address } = this.#staging;
    bytes.set(new Uint8Array(tokens.buffer, tokens.byteOffset, tokens.byteLength));
    return {
      tokensAt: address,
      outAt: address + tokens.byteLength,
      out: bytes.subarray(tokens.byteLength, needed),
    };
  }

  /**
   * Writes the keyed BLAKE3 of each item to `out`, 32 bytes each. Each item has `itemBytes` bytes.
   * Returns the number of items.
   */
  chainDigests(key: Uint8Array, items: Uint8Array, itemBytes: number, out: Uint8Array): number {
    const count = items.length / itemBytes;
    assert(Number.isInteger(count) && out.length >= count * 32, "whole items, room for digests");
    if (count === 0) return 0;
    const code = this.symbols.hearth_chain_digests(key, items, itemBytes, count, out);
    this.check("hearth_chain_digests", code);
    return count;
  }

  /** Writes `BLAKE3(digest ‖ layer as u32 LE)` to `out` for each 32-byte digest in `digests`. */
  blockKeys(digests: Uint8Array, layer: number, out: Uint8Array): void {
    const count = digests.length / 32;
    assert(Number.isInteger(count) && out.length >= digests.length, "room for every key");
    if (count === 0) return;
    this.check("hearth_block_keys", this.symbols.hearth_block_keys(digests, layer, count, out));
  }

  /** Returns the XXH3-64 hash of `data` with seed 0. */
  xxh3_64(data: Uint8Array): bigint {
    const out = this.#answer.bytes;
    this.call("hearth_xxh3_64", passable(data), data.length, out);
    return this.#answerView.getBigUint64(0, true);
  }

  /** Returns the XXH3-128 hash of `data` with seed 0: 16 bytes, big-endian. */
  xxh3_128(data: Uint8Array): Uint8Array {
    const out = this.#answer.bytes;
    this.call("hearth_xxh3_128", passable(data), data.length, out);
    return out.slice(0, 16);
  }

  socketPeer(socketFd: number): SocketPeer {
    const out = this.#answer.bytes;
    this.call("hearth_socket_peer", socketFd, out);
    const { pid, uid, gid, pid_fd } = readStruct("PeerInfo", out);
    const pidFd = pid_fd < 0 ? null : pid_fd;
    return { pid, uid, gid, groups: this.#peerGroups(socketFd), pidFd };
  }

  /**
   * Returns the supplementary group ids of the process at the other end of a socket. Empty if they
   * cannot be read.
   */
  #peerGroups(socketFd: number): number[] {
    const groups = new Uint32Array(new ArrayBuffer(GROUPS_MAX * 4));
    const bytes = new Uint8Array(groups.buffer);
    const count = this.symbols.hearth_socket_peer_groups(socketFd, bytes, GROUPS_MAX);
    return count < 0 ? [] : [...groups.subarray(0, count)];
  }

  /**
   * Sends bytes, and a file descriptor together with the first byte. Returns how many bytes were
   * sent, or the status `try_again` or `closed`.
   */
  sendFd(socketFd: number, bytes: Uint8Array, fd: number): number | StatusName {
    const code = this.symbols.hearth_socket_send_fd(socketFd, bytes, bytes.length, fd);
    return code >= 0 ? code : statusName(code);
  }

  /** Receives bytes, and a file descriptor if one was sent with them. */
  receiveFd(socketFd: number, into: Uint8Array): { count: number; fd: number | null } | StatusName {
    const out = this.#answer.bytes;
    const code = this.symbols.hearth_socket_receive_fd(socketFd, into, into.length, out);
    if (code < 0) return statusName(code);
    const fd = this.#answerView.getInt32(0, true);
    return { count: code, fd: fd < 0 ? null : fd };
  }

  /**
   * Creates a pair of connected sockets that preserve message boundaries, to pass file descriptors.
   */
  socketPair(): readonly [number, number] {
    const out = this.#answer.bytes;
    this.call("hearth_socket_pair", out);
    return [this.#answerView.getInt32(0, true), this.#answerView.getInt32(4, true)];
  }

  /**
   * Sets options on this process's UDP sockets bound to `port`, because the JavaScript runtime
   * creates them without exposing options. Turns IP_RECVERR off, so that an unreachable peer does
   * not fail sends to other peers, and sets the send and receive buffers to `bufferBytes`, as far
   * as kernel limits allow. Returns the number of sockets found.
   */
  tuneUdp(port: number, bufferBytes: number): number {
    return this.call("hearth_tune_udp", port, bufferBytes);
  }

  /**
   * Limits how much this process's TCP listeners on `port` can deliver to the JavaScript runtime in
   * one turn of the event loop: `backlog` waiting connections, and about `receiveBytes` per
   * connection. Without limits, the runtime accepts all waiting connections and reads all full
   * buffers in one turn. The clients' kernels retry connections beyond the backlog after a second.
   * Returns the number of listeners found.
   */
  tuneListener(port: number, backlog: number, receiveBytes: number): number {
    const tuned = this.symbols.hearth_tune_listener(port, backlog, receiveBytes);
    return this.check("hearth_tune_listener", tuned);
  }

  /**
   * Closes connections of this process's TCP server on `port` that have sent no byte within
   * `silentMs` milliseconds after connecting. Checks the `count` file descriptors that start at
   * `first`; `count` is at most 16,384. Returns how many of them are open connections of this
   * server.
   */
  endSilent(port: number, first: number, count: number, silentMs: number): number {
    const ended = this.symbols.hearth_end_silent(port, first, count, silentMs);
    return this.check("hearth_end_silent", ended);
  }

  closeFd(fd: number): void {
    this.call("hearth_close_fd", fd);
  }

  /**
   * Sends a state to systemd (sd_notify), with at most 8 file descriptors for systemd to store if
   * `state` contains FDSTORE=1. Returns false if the message cannot be sent.
   */
  notify(socketPath: string, state: string, fds: readonly number[] = []): boolean {
    const encoder = new TextEncoder();
    const path = encoder.encode(socketPath);
    const text = encoder.encode(state);
    const list = new Uint8Array(new Int32Array([...fds, -1]).buffer);
    const call = this.symbols.hearth_notify;
    return call(path, path.length, text, text.length, list, fds.length) === 0;
  }

  /**
   * Returns the time since boot in microseconds (CLOCK_MONOTONIC), comparable with systemd's
   * timestamps.
   */
  monotonicUs(): bigint {
    const out = this.#answer.bytes;
    this.call("hearth_monotonic_us", out);
    return this.#answerView.getBigUint64(0, true);
  }

  /**
   * Returns the processor time used by the calling thread, in milliseconds with microsecond
   * resolution.
   */
  threadCpuMs(): number {
    const out = this.#answer.bytes;
    this.check("hearth_thread_cpu_us", this.symbols.hearth_thread_cpu_us(out));
    const high = this.#answerView.getUint32(4, true);
    return (high * 2 ** 32 + this.#answerView.getUint32(0, true)) / 1_000;
  }

  /** Tests whether this process may create an io_uring. `errno` gives the reason if not. */
  probeIoUring(): { readonly ok: boolean; readonly errno: number } {
    const ok = this.symbols.hearth_probe_io_uring() === 0;
    return { ok, errno: ok ? 0 : this.symbols.hearth_last_errno() };
  }
}

/**
 * Returns `data`, or a small valid array in place of an empty one: the address of an empty array
 * may be invalid.
 */
function passable(data: Uint8Array): Uint8Array {
  return data.length === 0 ? EMPTY : data;
}

let loaded: Native | undefined;

/**
 * Returns the native library, which the first call of each thread opens. Throws NATIVE_UNAVAILABLE
 * with the reason.
 */
export function loadNative(): Native {
  loaded ??= new Native(openLibrary());
  return loaded;
}

/**
 * Returns whether the native library can be loaded, and if not, why. For tests and `hearth doctor`.
 */
export function nativeAvailable():
  | { readonly ok: true }
  | { readonly ok: false; readonly why: string } {
  try {
    loadNative();
    return { ok: true };
  } catch (error) {
    if (error instanceof HearthError) return { ok: false, why: error.text };
    throw error;
  }
}

/** An exclusive lock on a file. Disposing it, or the end of the process, releases the lock. */
export interface FileLock extends Disposable {
  readonly path: string;
}

/**
 * Locks a file against all other processes; creates the file if needed. Returns null if another
 * process holds the lock. Throws NativeError if the file cannot be opened.
 */
export function lockFile(native: Native, path: string): FileLock | null {
  const bytes = new TextEncoder().encode(path);
  const code = native.symbols.hearth_file_lock(bytes, bytes.length);
  if (code < 0 && statusName(code) === "try_again") return null;
  const fd = native.check("hearth_file_lock", code);
  let held = true;
  const release = () => {
    if (held) native.closeFd(fd);
    held = false;
  };
  return { path, [Symbol.dispose]: release };
}
