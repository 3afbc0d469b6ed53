/** Where commands for all workers are published. */
export const BROADCAST_SUBJECT = "kv-control-broadcast";
/** How discovery calls every agent. */
export const SERVICE_NAME = "hearth-agent";
/** Says where the receipt goes of a command that a stream kept, which used up the reply subject. */
export const REPLY_HEADER = "Hearth-Reply";
/** Holds the signature of a command, over NATS and over HTTP. */
export const SIGNATURE_HEADER = "Hearth-Signature";

/** An issuer that can prove its name: it is the last token of a subject. */
export const ISSUER_NAME = /^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$/;

/** Where one worker takes commands. */
export function workerSubject(worker: string): string {
  return `kv-control-${worker}`;
}

/** The subject on which only `issuer` may publish, if the server enforces it. */
export function issuerSubject(subject: string, issuer: string): string {
  return `${subject}.${issuer}`;
}
