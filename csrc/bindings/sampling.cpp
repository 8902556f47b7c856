#include "kernels/sampling.h"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bindings/arrays.h"
#include "bindings/bindings.h"
#include "bindings/gil.h"
#include "platform/memory.h"
#include "platform/per_process.h"
#include "program/device.h"

namespace nb = nanobind;

namespace octavo {

namespace {

// Token ids are not checked: kernels skip ids that are not in the vocabulary.
TokenLists read_token_lists(nb::handle lists, const std::string& name, int64_t num_rows) {
    const auto token_ids = array_of<int32_t, 1>(lists.attr("token_ids"), name + ".token_ids");
    const int64_t* offsets = numbers<int64_t>(lists.attr("offsets"), name + ".offsets", num_rows + 1);
    const int64_t num_tokens = static_cast<int64_t>(token_ids.shape(0));
    require(
        offsets[0] == 0 && offsets[num_rows] == num_tokens && std::is_sorted(offsets, offsets + num_rows + 1),
        name, ".offsets runs from ", offsets[0], " to ", offsets[num_rows], "; it must rise from 0 to the ",
        num_tokens, " tokens that are listed");
    return {offsets, token_ids.data()};
}

LogitBias read_bias(nb::handle bias, int64_t num_rows) {
    const TokenLists tokens = read_token_lists(bias.attr("tokens"), "bias.tokens", num_rows);
    return {tokens, numbers<float>(bias.attr("values"), "bias.values", tokens.offsets[num_rows])};
}

// Seen tokens are not checked: the kernel skips tokens outside the vocabulary or the table of counts.
Penalties read_penalties(nb::handle penalties, int64_t num_rows) {
    const auto seen = array_of<int32_t, 2>(penalties.attr("seen"), "penalties.seen");
    const auto counts = array_of<int32_t, 2>(penalties.attr("counts"), "penalties.counts");
    Penalties p;
    p.repetition = numbers<float>(penalties.attr("repetition"), "penalties.repetition", num_rows);
    p.frequency = numbers<float>(penalties.attr("frequency"), "penalties.frequency", num_rows);
    p.presence = numbers<float>(penalties.attr("presence"), "penalties.presence", num_rows);
    p.rows = numbers<int64_t>(penalties.attr("rows"), "penalties.rows", num_rows);
    p.seen = seen.data();
    p.counts = counts.data();
    p.max_seen = static_cast<int64_t>(seen.shape(1));
    p.num_counts = static_cast<int64_t>(counts.shape(1));
    const auto num_table_rows = static_cast<int64_t>(seen.shape(0));
    p.num_seen = numbers<int64_t>(penalties.attr("num_seen"), "penalties.num_seen", num_table_rows);
    require(static_cast<int64_t>(counts.shape(0)) == num_table_rows, "penalties.counts has ", counts.shape(0),
            " rows; it must have as many as penalties.seen, ", num_table_rows);
    for (int64_t i = 0; i < num_rows; ++i) {
        const int64_t row = p.rows[i];
        require(0 <= row && row < num_table_rows, "penalties.rows holds ", row, "; the tables have ",
                num_table_rows, " rows");
        require(0 <= p.num_seen[row] && p.num_seen[row] <= p.max_seen, "penalties.num_seen holds ",
                p.num_seen[row], "; it must be from 0 to the ", p.max_seen, " columns of penalties.seen");
    }
    return p;
}

// Kernels rely on these conditions to terminate.
void check_values(const SampleArguments& a) {
    for (int64_t row = 0; row < a.num_rows; ++row) {
        const float temperature = a.temperature[row], top_p = a.top_p[row], min_p = a.min_p[row];
        require(temperature == 0 || (temperature > 0 && std::isnormal(temperature)), "temperature holds ",
                temperature, "; it must be 0, or positive and not too small to divide by");
        require(a.top_k[row] >= 0, "top_k holds ", a.top_k[row], "; the least is 0, for all tokens");
        // A very small value becomes 0 as a float32; only the likeliest token is left.
        require(0 <= top_p && top_p <= 1, "top_p holds ", top_p, "; it must be from 0 to 1");
        require(0 <= min_p && min_p <= 1, "min_p holds ", min_p, "; it must be from 0 to 1");
    }
}

// Point `a`, whose shape is known, to what `metadata` (octavo.types.sampling.SamplingMetadata) holds.
void read_metadata(nb::handle metadata, SampleArguments& a) {
    a.temperature = numbers<float>(metadata.attr("temperature"), "temperature", a.num_rows);
    a.top_k = numbers<int32_t>(metadata.attr("top_k"), "top_k", a.num_rows);
    a.top_p = numbers<float>(metadata.attr("top_p"), "top_p", a.num_rows);
    a.min_p = numbers<float>(metadata.attr("min_p"), "min_p", a.num_rows);
    a.seeds = numbers<uint64_t>(metadata.attr("seeds"), "seeds", a.num_rows);
    a.positions = numbers<int64_t>(metadata.attr("positions"), "positions", a.num_rows);
    check_values(a);
    if (const nb::object allowed = metadata.attr("allowed"); !allowed.is_none()) {
        a.allowed = table<uint32_t>(allowed, "allowed", a.num_rows, (a.vocab_size + 31) / 32);
    }
    if (const nb::object bias = metadata.attr("bias"); !bias.is_none()) {
        a.bias = read_bias(bias, a.num_rows);
    }
    if (const nb::object penalties = metadata.attr("penalties"); !penalties.is_none()) {
        a.penalties = read_penalties(penalties, a.num_rows);
    }
}

// An array that Python will own. Not zeroed.
template <class T>
class NewArray {
  public:
    explicit NewArray(int64_t size) : size_(size), numbers_(new T[size]) {}

    T* data() { return numbers_.get(); }

    nb::object release() {
        T* numbers = numbers_.release();
        const nb::capsule owner(numbers, [](void* owned) noexcept { delete[] static_cast<T*>(owned); });
        return nb::cast(nb::ndarray<nb::numpy, T, nb::ndim<1>>(numbers, {static_cast<size_t>(size_)}, owner));
    }

  private:
    int64_t size_;
    std::unique_ptr<T[]> numbers_;
};

// Arrays for the logprobs of a step. A row that asks for logprobs has one entry more, for the chosen token.
struct Logprobs {
    NewArray<int64_t> offsets, counts, ranks;
    NewArray<int32_t> token_ids;
    NewArray<double> values;

    // `offsets` as in LogprobsOutput.
    Logprobs(NewArray<int64_t> offsets_, int64_t num_rows)
        : offsets(std::move(offsets_)),
          counts(num_rows),
          ranks(num_rows),
          token_ids(offsets.data()[num_rows]),
          values(offsets.data()[num_rows]) {
        std::fill_n(counts.data(), num_rows, 0);
    }

    LogprobsOutput output(bool processed, bool normalized) {
        return {processed,    normalized,       offsets.data(), counts.data(),
                ranks.data(), token_ids.data(), values.data()};
    }

    nb::tuple release() {
        return nb::make_tuple(offsets.release(), counts.release(), ranks.release(), token_ids.release(),
                              values.release());
    }
};

// The entry at which each row's logprobs begin: the chosen token's, then `num_logprobs` others.
NewArray<int64_t> make_offsets(const int32_t* num_logprobs, int64_t num_rows, int64_t vocab_size) {
    NewArray<int64_t> offsets(num_rows + 1);
    int64_t total = 0;
    for (int64_t row = 0; row < num_rows; ++row) {
        require(num_logprobs[row] >= NO_LOGPROBS, "num_logprobs holds ", num_logprobs[row], "; the least is ",
                NO_LOGPROBS, ", for none");
        offsets.data()[row] = total;
        total += num_logprobs[row] == NO_LOGPROBS ? 0 : 1 + std::min<int64_t>(num_logprobs[row], vocab_size);
    }
    offsets.data()[num_rows] = total;
    return offsets;
}

class Sampler {
  public:
    Sampler(Device& device, std::optional<int64_t> num_token_ids, bool processed, bool normalized)
        : device_(device),
          num_token_ids_(num_token_ids.value_or(MAX_VOCAB_SIZE)),
          processed_(processed),
          normalized_(normalized) {
        require(num_token_ids_ > 0, "num_token_ids is ", num_token_ids_, "; it must be positive, or None");
    }

    nb::tuple sample(nb::handle logits, nb::handle metadata) {
        SampleArguments a = begin(logits);
        read_metadata(metadata, a);
        const int32_t* num_logprobs =
            numbers<int32_t>(metadata.attr("num_logprobs"), "num_logprobs", a.num_rows);
        Logprobs logprobs(make_offsets(num_logprobs, a.num_rows, a.vocab_size), a.num_rows);
        a.logprobs = logprobs.output(processed_, normalized_);
        NewArray<int64_t> token_ids(a.num_rows);
        a.token_ids = token_ids.data();
        run(a);
        const bool any_wanted = a.logprobs.offsets[a.num_rows] > 0;
        return nb::make_tuple(token_ids.release(), any_wanted ? nb::object(logprobs.release()) : nb::none());
    }

    nb::tuple gather_logprobs(nb::handle logits, nb::handle token_ids, int64_t num_logprobs) {
        SampleArguments a = begin(logits);
        require(0 <= num_logprobs, "num_logprobs is ", num_logprobs, "; it must not be negative");
        a.given_token_ids = numbers<int64_t>(token_ids, "token_ids", a.num_rows);
        for (int64_t row = 0; row < a.num_rows; ++row) {
            require(0 <= a.given_token_ids[row] && a.given_token_ids[row] < a.vocab_size, "token_ids holds ",
                    a.given_token_ids[row], "; ids are 0 up to ", a.vocab_size - 1);
        }
        const auto wanted = static_cast<int32_t>(std::min(num_logprobs, a.vocab_size));
        const std::vector<int32_t> each(a.num_rows, wanted);
        Logprobs logprobs(make_offsets(each.data(), a.num_rows, a.vocab_size), a.num_rows);
        a.logprobs = logprobs.output(false, true);
        run(a);
        return logprobs.release();
    }

  private:
    static constexpr int64_t MAX_VOCAB_SIZE = INT32_MAX;  // ids are int32

    // The arguments' shape, and the scratch for it.
    SampleArguments begin(nb::handle logits) {
        const auto array = array_of<float, 2>(logits, "logits");
        SampleArguments a{};
        a.num_rows = static_cast<int64_t>(array.shape(0));
        a.vocab_size = static_cast<int64_t>(array.shape(1));
        require(0 < a.vocab_size && a.vocab_size <= MAX_VOCAB_SIZE, "logits have ", a.vocab_size,
                " columns; they must have one for each token of the vocabulary, at least 1");
        a.num_token_ids = std::min(a.vocab_size, num_token_ids_);
        a.logits = array.data();
        Scratch& scratch = scratch_.get();
        if (a.vocab_size > scratch.vocab_size) {
            allocate(scratch, a.vocab_size);
        }
        a.scratch = scratch.arrays;
        return a;
    }

    struct Scratch {
        Memory memory{0};
        SampleScratch arrays{};
        int64_t vocab_size = 0;
    };

    void allocate(Scratch& scratch, int64_t vocab_size) const {
        const int64_t num_threads = device_.pool.num_threads();
        const int64_t num_partials = std::max((vocab_size + CHUNK_TOKENS - 1) / CHUNK_TOKENS, num_threads);
        const int64_t size = num_threads * vocab_size;
        const int64_t partial_bytes = num_threads * 2 * num_partials * PARTIAL_BYTES;
        scratch.memory = Memory(partial_bytes + size * (2 * sizeof(uint64_t) + sizeof(float)));
        SampleScratch& arrays = scratch.arrays;
        arrays.num_partials = num_partials;
        arrays.partials = scratch.memory.data();
        arrays.entries = reinterpret_cast<uint64_t*>(arrays.partials + partial_bytes);
        arrays.sorted = arrays.entries + size;
        arrays.adjusted = reinterpret_cast<float*>(arrays.sorted + size);
        scratch.vocab_size = vocab_size;
    }

    void run(const SampleArguments& a) {
        const WithoutGil without_gil;
        device_.pool.run([&](Worker& worker) { device_.kernels->sample(a, worker); });
    }

    Device& device_;
    int64_t num_token_ids_;
    bool processed_, normalized_;
    PerProcess<Scratch> scratch_{[] { return std::make_unique<Scratch>(); }};
};

}  // namespace

void bind_sampling(nb::module_& module) {
    nb::class_<Sampler>(module, "Sampler",
                        "Samples on all threads of a device. Not to be called by two threads at once.")
        .def(nb::init<Device&, std::optional<int64_t>, bool, bool>(), nb::arg("device"),
             nb::arg("num_token_ids").none(), nb::arg("processed"), nb::arg("normalized"),
             nb::keep_alive<1, 2>(),
             "`num_token_ids`: ids the tokenizer knows, None for all. `processed`, `normalized`: which "
             "logprobs\n"
             "`sample` reports; see LogprobsOutput in csrc/kernels/sampling.h.")
        .def("sample", &Sampler::sample, nb::arg("logits"), nb::arg("metadata"),
             "Sample from logits [L, V] float32, which are only read, by a SamplingMetadata.\n\n"
             "Returns token ids [L] int64, and None or, if any row wants logprobs, five arrays: offsets [L + "
             "1],\n"
             "counts [L] and ranks [L] int64, then token ids int32 and logprobs float64. Of a row's two "
             "ranges in\n"
             "these, the first counts[row] entries are set. Raises ValueError for an array of another kind.")
        .def("gather_logprobs", &Sampler::gather_logprobs, nb::arg("logits"), nb::arg("token_ids"),
             nb::arg("num_logprobs"),
             "Raw log-probabilities of token_ids [L] int64 and of the `num_logprobs` most likely tokens, "
             "from\n"
             "logits [L, V] float32: five arrays as from `sample`. Raises ValueError likewise.");
}

}  // namespace octavo
