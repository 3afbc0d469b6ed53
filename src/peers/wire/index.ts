export {
  type DecodedPart,
  decodePart,
  encodeFrame,
  encodeRefusal,
  OpenItems,
  type Part,
  whyNoAnswer,
} from "./block-parts.ts";
export {
  FILTER_KEYS_MAX,
  type KeyFilter,
  KeyFilterBuilder,
  type ReadFilter,
  readKeyFilter,
} from "./key-filter.ts";
export {
  ALIASES_MAX,
  ANSWER_BYTES_MAX,
  DEVICES_MAX,
  FILTER_BYTES_MAX,
  FIND_NAMES_MAX,
  FOUND_MAX,
  ITEMS_MAX,
  LENGTH_BYTES,
  MODEL_BYTES_MAX,
  PART_BYTES_MAX,
  PAYLOAD_BYTES_MAX,
  REQUEST_BYTES_MAX,
  WHY_BYTES_MAX,
  WIRE_VERSION,
} from "./layout.ts";
export { lengthOf, MessageReader, withLength } from "./message-reader.ts";
export {
  type DecodedAnswer,
  type DecodedRequest,
  decodeAnswer,
  decodeRequest,
  encodeAnswer,
  encodeRequest,
} from "./requests-and-answers.ts";
