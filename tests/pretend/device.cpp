// A device of torch that computes on the processor, and refuses the processor's tensors beside its own as a GPU does.
//
// Memory of the device is ordinary memory under another name. Operators that make tensors or look at their shapes
// are given here; all others are computed by torch's own fallback, which copies tensors to the processor and back.
#include <ATen/EmptyTensor.h>
#include <ATen/Functions.h>
#include <ATen/Tensor.h>
#include <ATen/autocast_mode.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/native/Resize.h>
#include <ATen/native/TensorFactories.h>
#include <ATen/ops/as_strided_cpu_dispatch.h>
#include <ATen/ops/view_native.h>
#include <c10/core/Allocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <tuple>

namespace {

using c10::Device;
using c10::DeviceIndex;
using c10::Stream;
constexpr c10::DeviceType KIND = c10::DeviceType::PrivateUse1;

// One device with one stream: whatever is asked has been done already.
struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return KIND; }
  Device exchangeDevice(Device) const override { return {KIND, 0}; }
  Device getDevice() const override { return {KIND, 0}; }
  void setDevice(Device) const override {}
  void uncheckedSetDevice(Device) const noexcept override {}
  Stream getStream(Device device) const override { return Stream(Stream::DEFAULT, device); }
  Stream exchangeStream(Stream stream) const override { return stream; }
  DeviceIndex deviceCount() const noexcept override { return 1; }
  void record(void**, const Stream&, const DeviceIndex, const c10::EventFlag) const override {}
  void block(void*, const Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void destroyEvent(void*, const DeviceIndex) const noexcept override {}
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

// Memory of at most as many bytes as the environment says, so that a small device can be tried.
struct Memory final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    const char* most = std::getenv("PRETEND_DEVICE_BYTES");
    TORCH_CHECK_WITH(OutOfMemoryError, !most || bytes <= std::strtoull(most, nullptr, 10),
                     "pretend out of memory: ", bytes, " bytes");
    void* place = bytes ? std::malloc(bytes) : nullptr;
    return {place, place, &std::free, Device(KIND, 0)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &std::free; }
  void copy_data(void* to, const void* from, size_t bytes) const override { std::memcpy(to, from, bytes); }
} memory;
REGISTER_ALLOCATOR(KIND, &memory);

// The same memory as a tensor of the processor.
at::Tensor host(const at::Tensor& tensor) {
  return at::from_blob(tensor.data_ptr(), tensor.sizes(), tensor.strides(), tensor.options().device(at::kCPU));
}

at::Tensor empty(c10::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                 std::optional<Device>, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  const c10::DispatchKeySet keys(c10::DispatchKey::PrivateUse1);
  return at::detail::empty_generic(size, &memory, keys, c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(c10::IntArrayRef size, c10::IntArrayRef stride, std::optional<at::ScalarType> dtype,
                         std::optional<at::Layout>, std::optional<Device>, std::optional<bool>) {
  const c10::DispatchKeySet keys(c10::DispatchKey::PrivateUse1);
  return at::detail::empty_strided_generic(size, stride, &memory, keys, c10::dtype_or_default(dtype));
}

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool) {
  at::Tensor target = to.is_cpu() ? to : host(to);
  target.copy_(from.is_cpu() ? from : host(from));
  return to;
}

at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  at::native::resize_(to, from.sizes(), std::nullopt);
  return copy_from(from, to, false);
}

at::Tensor as_strided(const at::Tensor& tensor, c10::IntArrayRef size, c10::IntArrayRef stride,
                      std::optional<int64_t> offset) {
  return at::native::as_strided_tensorimpl(tensor, size, stride, offset);
}

at::Tensor view(const at::Tensor& tensor, c10::IntArrayRef size) { return at::native::view(tensor, size); }

at::Tensor reshape_alias(const at::Tensor& tensor, c10::IntArrayRef size, c10::IntArrayRef stride) {
  return at::native::as_strided_tensorimpl(tensor, size, stride, tensor.storage_offset());
}

at::Tensor unfold(const at::Tensor& tensor, int64_t axis, int64_t size, int64_t step) {
  const at::Tensor seen = host(tensor).unfold(axis, size, step);
  return at::native::as_strided_tensorimpl(tensor, seen.sizes(), seen.strides(), tensor.storage_offset());
}

const at::Tensor& resize(const at::Tensor& tensor, c10::IntArrayRef size, std::optional<at::MemoryFormat> format) {
  return at::native::resize_(tensor, size, format);
}

at::Scalar item(const at::Tensor& tensor) { return at::_local_scalar_dense(host(tensor)); }

// Convolutions of unknown devices have operators of their own, which the fallback does not know.
at::Tensor convolution(const at::Tensor& input, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                       c10::SymIntArrayRef stride, c10::SymIntArrayRef padding, c10::SymIntArrayRef dilation,
                       bool transposed, c10::SymIntArrayRef output_padding, c10::SymInt groups) {
  std::optional<at::Tensor> added;
  if (bias && bias->defined()) added = host(*bias);
  return at::convolution_symint(host(input), host(weight), added, stride, padding, dilation, transposed,
                                output_padding, groups)
      .to(input.device());
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> convolution_backward(
    const at::Tensor& gradient, const at::Tensor& input, const at::Tensor& weight, c10::SymIntArrayRef stride,
    c10::SymIntArrayRef padding, c10::SymIntArrayRef dilation, bool transposed, c10::SymIntArrayRef output_padding,
    c10::SymInt groups, std::array<bool, 3> wanted) {
  c10::SymInt outputs = transposed ? weight.sym_size(1) * groups : weight.sym_size(0);
  auto [of_input, of_weight, of_bias] = at::convolution_backward_symint(
      host(gradient), host(input), host(weight), c10::SymIntArrayRef(outputs), stride, padding, dilation, transposed,
      output_padding, groups, wanted);
  auto back = [&](const at::Tensor& tensor) { return tensor.defined() ? tensor.to(input.device()) : tensor; };
  return {back(of_input), back(of_weight), back(of_bias)};
}

// The fallback would lose the running statistics, which this operator changes though its schema does not say so.
std::tuple<at::Tensor, at::Tensor, at::Tensor> batch_norm(
    const at::Tensor& input, const std::optional<at::Tensor>& weight, const std::optional<at::Tensor>& bias,
    const std::optional<at::Tensor>& mean, const std::optional<at::Tensor>& variance, bool training, double momentum,
    double epsilon) {
  auto there = [](const std::optional<at::Tensor>& tensor) {
    return tensor && tensor->defined() ? std::optional<at::Tensor>(host(*tensor)) : std::nullopt;
  };
  auto [output, kept_mean, kept_deviation] = at::native_batch_norm(
      host(input), there(weight), there(bias), there(mean), there(variance), training, momentum, epsilon);
  const Device device = input.device();
  return {output.to(device), kept_mean.to(device), kept_deviation.to(device)};
}

// The fallback would take tensors of the processor beside those of the device. A GPU takes single numbers alone.
void fallback(const c10::OperatorHandle& operation, torch::jit::Stack* stack) {
  bool here = false, there = false;
  for (const c10::IValue& given : torch::jit::last(*stack, operation.schema().arguments().size())) {
    if (!given.isTensor() || !given.toTensor().defined()) continue;
    here = here || (given.toTensor().is_cpu() && given.toTensor().dim() > 0);
    there = there || given.toTensor().device().type() == KIND;
  }
  TORCH_CHECK(!(here && there), operation.schema().name(), ": expected all tensors to be on the same device");
  at::native::cpu_fallback(operation, stack);
}

// Random numbers come from the processor's generator, so that networks with dropout have the processor's bits, too.
struct Hooks final : at::PrivateUse1HooksInterface {
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  c10::Allocator* getPinnedMemoryAllocator() const override { return c10::GetCPUAllocator(); }
  bool isPinnedPtr(const void*) const override { return false; }
  Device getDeviceFromPtr(void*) const override { return {KIND, 0}; }
  const at::Generator& getDefaultGenerator(DeviceIndex) const override {
    return at::globalContext().defaultGenerator(at::kCPU);
  }
};

const bool registered = [] {
  at::RegisterPrivateUse1HooksInterface(new Hooks);
  return true;
}();

}  // namespace

TORCH_LIBRARY_IMPL(_, PrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("empty.memory_format", &empty);
  library.impl("empty_strided", &empty_strided);
  library.impl("_copy_from", &copy_from);
  library.impl("_copy_from_and_resize", &copy_from_and_resize);
  library.impl("as_strided", &as_strided);
  library.impl("view", &view);
  library.impl("_reshape_alias", &reshape_alias);
  library.impl("unfold", &unfold);
  library.impl("resize_", &resize);
  library.impl("_local_scalar_dense", &item);
  library.impl("native_batch_norm", &batch_norm);
  library.impl("convolution_overrideable", &convolution);
  library.impl("convolution_backward_overrideable", &convolution_backward);
}

TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) { m.fallback(torch::CppFunction::makeFallthrough()); }

TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
  KERNEL_PRIVATEUSEONE(linear, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(matmul, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(conv2d, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(cross_entropy_loss, fp32)
  KERNEL_PRIVATEUSEONE(mse_loss, fp32)
}
