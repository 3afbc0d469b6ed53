import type { Endpoint } from "./endpoint.ts";
import type { Flight } from "./flight.ts";
import type { Hints } from "./hints.ts";
import type { NamedModel } from "./model-names.ts";
import type { SeenPrompt } from "./prompt.ts";
import type { RequestBody } from "./request-body.ts";

/** One request for tokens, as far as it is known before a worker is chosen. */
export interface Asked {
  readonly kind: Extract<Endpoint, { kind: "chat" | "completions" }>["kind"];
  readonly path: string;
  readonly headers: Headers;
  readonly body: RequestBody;
  readonly named: NamedModel;
  readonly hints: Hints;
  readonly prompt: SeenPrompt;
  readonly flight: Flight;
  /** Fires when the client leaves, and when the proxy gives the request up. */
  readonly signal: AbortSignal;
}
