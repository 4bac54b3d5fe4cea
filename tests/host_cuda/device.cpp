// A device of type CUDA for a CPU build of torch. Its memory is the host's and its kernels are the CPU's; dispatch keys,
// autocast's registrations for CUDA, device guards and autograd's threads for each device are the real ones.
#include <ATen/core/Tensor.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/csrc/distributed/c10d/reducer_timer.hpp>
#include <torch/library.h>

#include <optional>
#include <utility>
#include <vector>

namespace {
using at::Tensor;
using c10::Device;
using c10::DeviceIndex;
using c10::DispatchKey;
using c10::IValue;
using c10::Storage;
using c10::Stream;

constexpr auto CUDA = c10::DeviceType::CUDA;
thread_local DeviceIndex current = 0;
DeviceIndex count = 1;

// What torch asks of a device before and after it switches to it. Nothing runs asynchronously, so streams and events are names.
struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return CUDA; }
  Device getDevice() const override { return {CUDA, current}; }
  Device exchangeDevice(Device next) const override { Device before = getDevice(); uncheckedSetDevice(next); return before; }
  void setDevice(Device next) const override { uncheckedSetDevice(next); }
  void uncheckedSetDevice(Device next) const noexcept override { if (next.has_index()) current = next.index(); }
  DeviceIndex deviceCount() const noexcept override { return count; }
  Stream getStream(Device of) const override { return Stream(Stream::DEFAULT, of.has_index() ? of : getDevice()); }
  Stream getDefaultStream(Device of) const override { return getStream(of); }
  Stream getNewStream(Device of, int) const override { return getStream(of); }
  Stream exchangeStream(Stream next) const override { return getStream(next.device()); }
  void record(void**, const Stream&, const DeviceIndex, const c10::EventFlag) const override {}
  void block(void*, const Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  bool queryStream(const Stream&) const override { return true; }
  void destroyEvent(void*, const DeviceIndex) const noexcept override {}
  void synchronizeStream(const Stream&) const override {}
  void synchronizeEvent(void*) const override {}
  void synchronizeDevice(const DeviceIndex) const override {}
  void recordDataPtrOnStream(const c10::DataPtr&, const Stream&) const override {}
} guard;

void release(void* owned) { delete static_cast<Storage*>(owned); }

// Memory of `host` under the name of a CUDA device; it keeps the host's storage alive.
c10::DataPtr on_device(const Storage& host, Device device) {
  return {host.mutable_data(), new Storage(host), &release, device};
}

Tensor shaped_as(const Tensor& like, Storage storage, DispatchKey key) {
  Tensor made = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(key), like.dtype());
  made.unsafeGetTensorImpl()->set_sizes_and_strides(like.sizes(), like.strides(), like.storage_offset());
  return made;
}

// The arguments of one call, each device tensor with the host tensor that stands in for it.
class Call {
 public:
  Tensor to_host(const Tensor& given) {
    if (!given.defined()) return given;
    if (!given.is_cuda()) return passed_.push_back(given), given;
    device_ = given.device();
    for (auto& [device, host] : tensors_) if (device.is_same(given)) return host;
    tensors_.emplace_back(given, shaped_as(given, host_memory(given.storage()), DispatchKey::CPU));
    return tensors_.back().second;
  }
  Tensor to_device(const Tensor& made) {
    if (!made.defined() || !made.device().is_cpu()) return made;
    for (auto& tensor : passed_) if (tensor.is_same(made)) return tensor;
    for (auto& [device, host] : tensors_) if (host.is_same(made)) return device;
    for (auto& [device, host] : memory_)  // a view of an argument
      if (host.is_alias_of(made.storage())) return shaped_as(made, device, DispatchKey::CUDA);
    Storage memory(Storage::use_byte_size_t(), made.storage().nbytes(), on_device(made.storage(), device_), nullptr, false);
    return shaped_as(made, std::move(memory), DispatchKey::CUDA);
  }
  IValue argument(const IValue& value) {
    if (value.isDevice() && value.toDevice().is_cuda()) {
      if (value.toDevice().has_index()) device_ = value.toDevice();
      return Device(c10::DeviceType::CPU);
    }
    goes_to_host_ = goes_to_host_ || (value.isDevice() && value.toDevice().is_cpu());
    return mapped(value, [this](const Tensor& t) { return to_host(t); });
  }
  IValue result(const IValue& value) {
    return goes_to_host_ ? value : mapped(value, [this](const Tensor& t) { return to_device(t); });
  }
  Device device() const { return device_; }
  // out= arguments that the CPU's kernel gave another size, and with it other memory
  void follow_resizes() {
    for (auto& [device, host] : tensors_) {
      if (host.storage().data() != device.storage().data() || host.storage().nbytes() != device.storage().nbytes()) {
        device.storage().unsafeGetStorageImpl()->set_data_ptr_noswap(on_device(host.storage(), device.device()));
        device.storage().unsafeGetStorageImpl()->set_nbytes(host.storage().nbytes());
      }
      if (host.sizes() != device.sizes() || host.strides() != device.strides())
        device.unsafeGetTensorImpl()->set_sizes_and_strides(host.sizes(), host.strides(), host.storage_offset());
    }
  }

 private:
  Storage host_memory(const Storage& of) {
    for (auto& [device, host] : memory_) if (device.unsafeGetStorageImpl() == of.unsafeGetStorageImpl()) return host;
    c10::DataPtr borrowed(of.mutable_data(), Device(c10::DeviceType::CPU));
    memory_.emplace_back(of, Storage(Storage::use_byte_size_t(), of.nbytes(), std::move(borrowed), c10::GetCPUAllocator(), true));
    return memory_.back().second;
  }
  template <typename F> static IValue mapped(const IValue& value, F&& each) {
    if (value.isTensor()) return each(value.toTensor());
    if (value.isTensorList()) {
      c10::List<Tensor> all;
      for (const Tensor& t : value.toTensorVector()) all.push_back(each(t));
      return all;
    }
    if (value.isOptionalTensorList()) {
      c10::List<std::optional<Tensor>> all;
      for (const auto& t : value.toOptionalTensorVector()) all.push_back(t ? std::optional<Tensor>(each(*t)) : std::nullopt);
      return all;
    }
    return value;
  }

  std::vector<std::pair<Storage, Storage>> memory_;   // device, host
  std::vector<std::pair<Tensor, Tensor>> tensors_;    // device, host
  std::vector<Tensor> passed_;
  Device device_{CUDA, current};
  bool goes_to_host_ = false;
};

// The generators that draw on each device when none is named; Python holds them too.
std::vector<at::Generator>& generators() { static std::vector<at::Generator> made; return made; }

// While it lives, the CPU's own generator draws what the device's does.
class Drawing {
 public:
  Drawing(const c10::OperatorHandle& op, Device device) {
    if (!op.hasTag(at::Tag::nondeterministic_seeded) || static_cast<size_t>(device.index()) >= generators().size()) return;
    of_ = generators()[device.index()];
    before_ = host_.get_state();
    host_.set_state(of_->get_state());
  }
  ~Drawing() {
    if (!of_) return;
    of_->set_state(host_.get_state());
    host_.set_state(before_);
  }

 private:
  at::Generator host_ = at::detail::getDefaultCPUGenerator();
  std::optional<at::Generator> of_;
  Tensor before_;
};

long ran = 0, fails_at = -1;

// Every op on CUDA tensors: the CPU's kernel on the same memory.
void run_on_host(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  if (++ran == fails_at)
    TORCH_CHECK_WITH(OutOfMemoryError, false, "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 is full.");
  Call call;
  const auto given = op.schema().arguments().size(), made = op.schema().returns().size();
  for (auto i = stack->size() - given; i < stack->size(); ++i) (*stack)[i] = call.argument((*stack)[i]);
  Drawing drawing(op, call.device());
  op.redispatchBoxed(c10::DispatchKeySet(DispatchKey::CPU), stack);
  call.follow_resizes();
  for (auto i = stack->size() - made; i < stack->size(); ++i) (*stack)[i] = call.result((*stack)[i]);
}
}  // namespace

struct HostHooks final : at::CUDAHooksInterface {
  HostHooks(at::CUDAHooksArgs) {}
  void init() const override {}
  const at::Generator& getDefaultGenerator(DeviceIndex of) const override { return generators().at(of < 0 ? current : of); }
  at::Generator getNewGenerator(DeviceIndex) const override {
    at::Generator made = at::detail::createCPUGenerator();
    if (static_cast<DeviceIndex>(generators().size()) < count) generators().push_back(made);  // the first of all are the devices' own
    return made;
  }
  Device getDeviceFromPtr(void*) const override { return {CUDA, current}; }
  bool isPinnedPtr(const void*) const override { return true; }  // there is no other memory
  at::Allocator* getPinnedMemoryAllocator() const override { return c10::GetCPUAllocator(); }
  bool hasCUDA() const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  DeviceIndex current_device() const override { return current; }
  DeviceIndex getCurrentDevice() const override { return current; }
  DeviceIndex deviceCount() const override { return count; }
  int getNumGPUs() const override { return count; }
  void deviceSynchronize(DeviceIndex) const override {}
};
// DistributedDataParallel times its steps on a clock of the device's kind; it asks for none of the figures.
struct HostTimer final : c10d::Timer {
  explicit HostTimer(Device) {}
  std::optional<int64_t> measureDifference(Event, Event) override { return std::nullopt; }
};
namespace c10d {
C10_REGISTER_TYPED_CLASS(TimerRegistry, CUDA, HostTimer)
}
namespace at {
C10_REGISTER_TYPED_CLASS(CUDAHooksRegistry, "CUDAHooks", HostHooks)
}

TORCH_LIBRARY_IMPL(_, CUDA, library) { library.fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_host>()); }
// Ops with a kernel of their own for every device, which the fallback does not reach.
TORCH_LIBRARY_IMPL(aten, CUDA, library) {
  for (const char* name : {"copy_", "convolution", "convolution_backward", "native_batch_norm", "native_batch_norm_backward",
                           "silu_backward", "mish_backward"})
    library.impl(name, torch::CppFunction::makeFromBoxedFunction<&run_on_host>());
}

// Memory runs out at the op of this number, counted from now; how many have run since the last call.
extern "C" long run_out_at(long op) {
  const long counted = ran;
  ran = 0, fails_at = op;
  return counted;
}
extern "C" void install_devices(int devices) {
  count = static_cast<DeviceIndex>(devices);
  c10::impl::device_guard_impl_registry[static_cast<size_t>(CUDA)].store(&guard);
}
