/** Kinds of attention, in the order in which they are shown. */
export const KINDS = ["encoder", "cross", "decoder"];

/** What each kind is called. */
export const KIND_NAMES = {
  encoder: "Encoder self-attention",
  cross: "Cross-attention",
  decoder: "Decoder self-attention",
};

/** What the words for the pooled heads stand for. */
export const POOLED = { mean: "mean", max: "max", rollout: "rollout" };

/** Shows a number with a fixed number of digits and a real minus sign. */
export function shown(value, digits = 2) {
  const text = value.toFixed(digits);
  return Number(text) === 0 ? (0).toFixed(digits) : text.replace("-", "−");
}

/** Shows a difference, always with its sign. */
export function signed(value) {
  const text = shown(value);
  return text.startsWith("−") || Number(text) === 0 ? text : `+${text}`;
}

/** Shows a probability in percent. */
export function percent(probability) {
  if (probability < 0.001) return "< 0.1%";
  return `${(100 * probability).toFixed(probability < 0.1 ? 1 : 0)}%`;
}

/** Returns from 0 (certain) to 1 (very unlikely) for a log-probability. */
export function doubt(logProb) {
  return Math.min(1, Math.max(0, -logProb / 4));
}

const decoded = new WeakMap();

function weights(attention) {
  if (!decoded.has(attention)) {
    const text = atob(attention.data);
    const bytes = new Uint8Array(text.length);
    for (let i = 0; i < text.length; i += 1) bytes[i] = text.charCodeAt(i);
    const values = new Float32Array(bytes.length / 2);
    for (let i = 0; i < values.length; i += 1) values[i] = (bytes[2 * i] + 256 * bytes[2 * i + 1]) / 65535;
    decoded.set(attention, { values, pooled: new Map() });
  }
  return decoded.get(attention);
}

function isOn(matrix) {
  return matrix.some((weight) => weight > 0);
}

function headsOf(attention, layer) {
  const layers = layer === "all" ? [...Array(attention.layers).keys()] : [layer];
  const heads = [...Array(attention.heads).keys()];
  return layers.flatMap((each) => heads.map((head) => headWeights(attention, each, head)));
}

function pool(matrices, size, kind) {
  const result = new Float32Array(size);
  const on = matrices.filter(isOn);
  for (const matrix of on) {
    for (let i = 0; i < size; i += 1) {
      if (kind === "max") result[i] = Math.max(result[i], matrix[i]);
      else result[i] += matrix[i] / on.length;
    }
  }
  return result;
}

function product(left, right, size) {
  const result = new Float32Array(size * size);
  for (let i = 0; i < size; i += 1) {
    for (let k = 0; k < size; k += 1) {
      const weight = left[i * size + k];
      if (weight === 0) continue;
      for (let j = 0; j < size; j += 1) result[i * size + j] += weight * right[k * size + j];
    }
  }
  return result;
}

/** Attention rollout (Abnar and Zuidema, 2020): the product over the layers of 0.5 A + 0.5 I, A the mean over heads. */
function rollout(attention) {
  const size = attention.rows;
  let result = null;
  for (let layer = 0; layer < attention.layers; layer += 1) {
    const mixed = pool(headsOf(attention, layer), size * size, "mean");
    for (let row = 0; row < size; row += 1) {
      let total = 0;
      for (let column = 0; column < size; column += 1) {
        const at = row * size + column;
        mixed[at] = 0.5 * mixed[at] + (row === column ? 0.5 : 0);
        total += mixed[at];
      }
      for (let column = 0; column < size; column += 1) mixed[row * size + column] /= total;
    }
    result = result ? product(mixed, result, size) : mixed;
  }
  return result;
}

function headWeights(attention, layer, head) {
  const size = attention.rows * attention.columns;
  const start = (layer * attention.heads + head) * size;
  return weights(attention).values.subarray(start, start + size);
}

/**
 * Returns the weights of one head, or of several as one matrix, row by row.
 * @param attention one kind of attention of an answer
 * @param layer number from 0, or "all"
 * @param head number from 0, "mean", "max" or "rollout"
 */
export function attentionMatrix(attention, layer, head) {
  if (typeof head === "number" && typeof layer === "number") return headWeights(attention, layer, head);
  const { pooled } = weights(attention);
  const key = `${layer} ${head}`;
  if (!pooled.has(key)) {
    const size = attention.rows * attention.columns;
    pooled.set(key, head === "rollout" ? rollout(attention) : pool(headsOf(attention, layer), size, head));
  }
  return pooled.get(key);
}

/** Returns the mean entropy of a matrix' rows in nats, and its largest weight. */
export function sharpness(matrix, rows, columns) {
  let entropy = 0;
  let largest = 0;
  for (const weight of matrix) {
    if (weight > 0) entropy -= weight * Math.log(weight);
    largest = Math.max(largest, weight);
  }
  return { entropy: rows && columns ? entropy / rows : 0, largest };
}
