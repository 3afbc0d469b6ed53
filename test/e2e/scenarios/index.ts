import { COMMANDS } from "./commands.ts";
import { ENVELOPE } from "./envelope.ts";
import { FLOWS } from "./flows.ts";
import { HTTP } from "./http.ts";
import type { Scenario } from "./scenario.ts";
import { STREAMS } from "./stream.ts";
import { SURVIVAL } from "./survival.ts";
import { TRANSPORT } from "./transport.ts";

export type { Scenario } from "./scenario.ts";

export const SCENARIOS: readonly Scenario[] = [
  ...COMMANDS,
  ...ENVELOPE,
  ...FLOWS,
  ...TRANSPORT,
  ...STREAMS,
  ...SURVIVAL,
  ...HTTP,
];
