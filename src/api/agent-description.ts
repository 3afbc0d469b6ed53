import type { DescriptionWords } from "./description.ts";
import { AGENT_RULES } from "./route-rules.ts";

const DIGEST = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824";

const EXAMPLES: Readonly<Record<string, unknown>> = {
  root: "1234567890",
  key: "1234567890",
  depth: 2,
  limit: 100,
  after: 100,
  fields: "digest,tiers,held_by",
  names: `111,222,${DIGEST}`,
  owner: "system-prompts",
  kind: "retain",
  issuer: "router-1",
  id: "w-1",
  wait: "false",
};
/** Where a name means something else. */
const EXAMPLES_OF: Readonly<Record<string, Readonly<Record<string, unknown>>>> = {
  "GET /v1/tree": { after: "n6Fb8gEAAAABAAAAAgAAAAIAAAA" },
  "GET /v1/sessions/:id": { id: "42" },
};

const ANSWERS_OF: Readonly<Record<string, Readonly<Record<string, string>>>> = {
  "GET /v1/tree": { 404: "The root is not known here" },
  "GET /v1/sessions/:id": { 404: "No session of this number holds a block" },
  "POST /v1/persist": { 501: "There is no SSD tier" },
  "GET /flush_cache": { 405: "HEAD; and GET without `api.flush_by_get`" },
};

/** Of the agent's API. */
export const AGENT_DESCRIPTION: DescriptionWords = {
  rules: AGENT_RULES,
  examples: EXAMPLES,
  examplesOf: EXAMPLES_OF,
  answersOf: ANSWERS_OF,
};
