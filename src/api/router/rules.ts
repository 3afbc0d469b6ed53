import type { DescriptionWords } from "../description.ts";
import { createRouteRules } from "../route-rules.ts";

/** What a caller of a router must be allowed to. */
export const ROUTER_RULES = createRouteRules({
  // Probes carry no token; these tell nothing but health.
  "GET /healthz": "open",
  "GET /readyz": "open",
  "GET /metrics": "read",
  "GET /openapi": "read",
  "GET /openapi/json": "read",
  // With a request id it is counted as load from here on.
  "POST /v1/route": "operate",
  "POST /v1/requests/:id/prefill-complete": "operate",
  "POST /v1/requests/:id/output": "operate",
  "POST /v1/requests/:id/free": "operate",
  "POST /v1/sessions/:id/returning": "operate",
  "POST /v1/sessions/:id/end": "operate",
  "GET /v1/loads": "read",
  "POST /v1/loads": "read",
  "GET /v1/workers": "read",
  "POST /v1/workers": "operate",
  "DELETE /v1/workers/:id": "operate",
  "GET /v1/events/dump": "read",
  "GET /v1/explain/:id": "read",
  "POST /query": "read",
  "POST /query_by_hash": "read",
  "GET /busy_threshold": "read",
  "POST /busy_threshold": "operate",
});

const UNKNOWN_REQUEST = { 404: "No such request is live" };

/** What its description says beyond what the framework knows. */
export const ROUTER_DESCRIPTION: DescriptionWords = {
  rules: ROUTER_RULES,
  examples: { id: "req-1", model: "meta-llama/Llama-3.1-8B-Instruct" },
  examplesOf: {
    "DELETE /v1/workers/:id": { id: "gpu-01" },
    "POST /v1/sessions/:id/returning": { id: "chat-9" },
    "POST /v1/sessions/:id/end": { id: "chat-9" },
  },
  answersOf: {
    "POST /v1/route": {
      404: "The worker that is named is not there",
      503: "No worker of that model is there",
      529: "All workers are busy (`api.busy_status` may name another status)",
    },
    "POST /v1/requests/:id/prefill-complete": UNKNOWN_REQUEST,
    "POST /v1/requests/:id/output": UNKNOWN_REQUEST,
    "POST /v1/requests/:id/free": UNKNOWN_REQUEST,
    "DELETE /v1/workers/:id": { 404: "No such worker is known" },
    "POST /v1/workers": { 503: "The router knows as many workers as it may" },
    "GET /v1/explain/:id": { 404: "No decision of that request is kept" },
    "POST /busy_threshold": {
      400: "A threshold is out of range",
      404: "No worker of that model is known",
    },
  },
};
