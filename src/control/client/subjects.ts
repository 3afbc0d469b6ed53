import { HearthError } from "../../core/index.ts";
import { ISSUER_NAME, workerSubject } from "../index.ts";

/** Where a worker listens. Throws USAGE for a name that would be several subjects, or none. */
export function commandSubject(worker: string): string {
  // Spaces end a subject, stars and angles stand for many, and this one worker is everybody.
  if (/^[^\s*>\0]+$/.test(worker) && worker !== "broadcast") return workerSubject(worker);
  throw new HearthError("USAGE", `"${worker}" is no worker's name`);
}

/** Throws USAGE for a name that cannot be the last token of a subject. */
export function mustBeIssuer(issuer: string | null): string {
  if (issuer !== null && ISSUER_NAME.test(issuer)) return issuer;
  throw new HearthError("USAGE", "an issuer that proves its name needs one", {
    fix: "give 1 to 64 letters, digits, - and _, the first a letter or digit",
  });
}
