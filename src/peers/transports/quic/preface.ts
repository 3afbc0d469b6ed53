import { createPrivateKey, type KeyObject, sign, verify, type X509Certificate } from "node:crypto";
import type { WorkerId } from "../../../core/index.ts";

/**
 * Each stream starts with a preface: length of the proof (u16), length of the padding (u16), the
 * proof, and the padding (zeros).
 *
 * Proof: a signature by the client that it is talking to this server, made with its certificate's
 * private key. It is needed because the runtime misreports the client's certificate to a server: if
 * the client sends a chain, the runtime reports the second certificate, which may belong to any
 * host.
 *
 * Padding: until a server has validated the client's address, it may send at most three times the
 * bytes that it has received. Therefore a stream in the first packets is padded, so that its reply
 * can be sent.
 */
const HEAD_BYTES = 4;
export const PROOF_BYTES_MAX = 1_024;
export const PADDING_BYTES_MAX = 8 * 1024;
/**
 * Padding of a stream in the first packets. Sufficient for the server's handshake and about 8 KiB
 * of reply.
 */
export const EARLY_PADDING_BYTES = 4 * 1024;

export interface Endpoints {
  readonly cluster: string;
  readonly client: WorkerId;
  readonly server: WorkerId;
}

function statement({ cluster, client, server }: Endpoints): Uint8Array {
  return Buffer.from(["hearth-kv/1", cluster, client, "asks", server].join("\0"));
}

function digestFor({ asymmetricKeyType: type }: KeyObject): string | null {
  return type === "ed25519" || type === "ed448" ? null : "sha256";
}

/**
 * Creates the proof that the client sends. `key`: private key of the client's certificate in PEM.
 */
export function makeProof(key: string, speakers: Endpoints): Uint8Array {
  const private_ = createPrivateKey(key);
  return sign(digestFor(private_), statement(speakers), private_);
}

export function isProof(
  certificate: X509Certificate,
  speakers: Endpoints,
  proof: Uint8Array,
): boolean {
  const { publicKey } = certificate;
  try {
    return verify(digestFor(publicKey), statement(speakers), publicKey, proof);
  } catch {
    // `verify` throws if keys of this type cannot sign.
    return false;
  }
}

export function encodePreface(proof: Uint8Array, paddingBytes: number): Uint8Array {
  const bytes = new Uint8Array(HEAD_BYTES + proof.length + paddingBytes);
  const view = new DataView(bytes.buffer);
  view.setUint16(0, proof.length, true);
  view.setUint16(2, paddingBytes, true);
  bytes.set(proof, HEAD_BYTES);
  return bytes;
}

/** Reads the preface of a stream, which may arrive in several chunks. */
export class PrefaceReader {
  /** The client's proof. Null until it has arrived completely. */
  proof: Uint8Array | null = null;
  /** Reason why the preface is invalid. Null if it is valid so far. */
  fault: string | null = null;
  #kept = new Uint8Array(HEAD_BYTES);
  #keptBytes = 0;
  #paddingLeft = -1;

  get complete(): boolean {
    return this.proof !== null && this.#paddingLeft === 0;
  }

  /**
   * Consumes bytes of the preface from offset `at` of `chunk`. Returns the offset after the last
   * consumed byte.
   */
  take(chunk: Uint8Array, at: number): number {
    at = this.#keep(chunk, at);
    if (this.#paddingLeft < 0 && this.#keptBytes === HEAD_BYTES) this.#begin();
    if (this.fault !== null || this.#paddingLeft < 0) return at;
    at = this.#keep(chunk, at);
    if (this.#keptBytes < this.#kept.length) return at;
    this.proof ??= this.#kept.subarray(HEAD_BYTES);
    const skipped = Math.min(this.#paddingLeft, chunk.length - at);
    this.#paddingLeft -= skipped;
    return at + skipped;
  }

  #begin(): void {
    const view = new DataView(this.#kept.buffer);
    const proofBytes = view.getUint16(0, true);
    this.#paddingLeft = view.getUint16(2, true);
    if (proofBytes > PROOF_BYTES_MAX) this.fault = "proof too long";
    else if (this.#paddingLeft > PADDING_BYTES_MAX) this.fault = "padding too long";
    else this.#kept = new Uint8Array(HEAD_BYTES + proofBytes);
  }

  #keep(chunk: Uint8Array, at: number): number {
    const bytes = Math.min(this.#kept.length - this.#keptBytes, chunk.length - at);
    this.#kept.set(chunk.subarray(at, at + bytes), this.#keptBytes);
    this.#keptBytes += bytes;
    return at + bytes;
  }
}
