import { HearthError, messageOf } from "../../../core/index.ts";

export type QuicModule = typeof import("node:quic");
export type Endpoint = import("node:quic").QuicEndpoint;
export type Session = import("node:quic").QuicSession;
export type Stream = import("node:quic").QuicStream;
export type SessionOptions = import("node:quic").SessionOptions;

let loading: Promise<QuicModule> | undefined;

/**
 * The runtime's QUIC, loaded when it is first needed. Importing it prints a warning that it is
 * experimental, which is no news to an operator: that one is left out, all others pass. Throws
 * UNSUPPORTED where the runtime has none.
 */
export function loadQuic(): Promise<QuicModule> {
  loading ??= load();
  return loading;
}

async function load(): Promise<QuicModule> {
  const emit = process.emitWarning;
  const pass = (...args: Parameters<typeof emit>) => {
    if (!String(args[0]).startsWith("quic is an experimental feature")) emit.apply(process, args);
  };
  process.emitWarning = pass as typeof emit;
  try {
    return await import("node:quic");
  } catch (cause) {
    const message = `this runtime has no QUIC: ${messageOf(cause)}`;
    throw new HearthError("UNSUPPORTED", message, { cause });
  } finally {
    process.emitWarning = emit;
  }
}
